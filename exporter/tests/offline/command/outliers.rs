//! `find_outlier_nodes` asks the installed Prometheus. What the rules record is scraped here, under their names.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use gpucause_fixture::poll::until;
use gpucause_fixture::prometheus_server::Prometheus;
use serde_json::{Value, json};

use super::assistant::Assistant;

const RANKS: u32 = 8;
const SLOW: u32 = 5;

fn page() -> String {
    let mut page = String::new();
    for rank in 0..RANKS {
        let labels =
            format!("job=\"gpucause\",instance=\"gpu-{rank}:9400\",pid=\"7\",comm=\"train.py\"");
        let job = format!("slurm_job=\"17\",rank=\"{rank}\",world_size=\"{RANKS}\"");
        let is_slow = rank == SLOW;
        let lost = if is_slow { 0.4 } else { 0.01 };
        page += &format!(
            "process:gpucause_peers:info{{{labels},{job}}} 1\n\
             gpucause_process_info{{{labels},{job}}} 1\n\
             process:gpucause_launches:rate1m{{{labels}}} {}\n\
             process:gpucause_launch_duration_seconds:p99_1m{{{labels}}} 0.0002\n\
             process:gpucause_host_delay:ratio_rate1m{{{labels}}} {lost}\n",
            1000 + rank
        );
        if is_slow {
            page += &format!("process:gpucause_fleet_straggler:state{{{labels},{job}}} 1\n");
        }
    }
    page
}

/// Serves the page to all who ask; gives its address.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let respond = |mut stream: TcpStream| -> std::io::Result<()> {
        let _ = stream.read(&mut [0; 4096])?;
        let page = page();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{page}", page.len())
    };
    std::thread::spawn(move || {
        // A client that has gone is no failure of the test.
        listener.incoming().map_while(Result::ok).for_each(|stream| drop(respond(stream)));
    });
    address
}

#[test]
fn prometheus_has_the_rank_that_stands_off_its_job_and_the_node_that_it_cannot_scrape() {
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: gpucause\n    honor_labels: true\n    \
         static_configs: [{{targets: ['{}', '127.0.0.1:1']}}]\n",
        serve()
    );
    let prometheus = Prometheus::start(&config, &[]);
    until("scrapes", || {
        let up = prometheus.query("up", "instance");
        (up.len() == 2 && up.iter().any(|(_, value)| *value == 1.0)).then_some(())
    });
    let url = prometheus.url();
    let mut assistant = Assistant::of(&["--prometheus", &url]);
    for asked in [json!({}), json!({"job": "17", "comm": "train.py", "detail": true})] {
        let answer = assistant.answer("find_outlier_nodes", &asked);
        assert_eq!(answer["source"], url, "{answer}");
        assert_eq!(answer["ranks_compared"], RANKS, "{answer}");
        assert_eq!(answer["outlier_nodes"], json!([format!("gpu-{SLOW}:9400")]), "{answer}");
        assert_eq!(answer["failures"][0]["url"], "127.0.0.1:1", "{answer}");
        for age in ["newest_value_age_s", "oldest_scrape_age_s"] {
            assert!(answer[age].as_f64().is_some_and(|age| (0.0..30.0).contains(&age)), "{answer}");
        }
        let rank = &answer["ranks"][0];
        assert_eq!((&rank["rank"], &rank["is_straggler_by_rules"]), (&json!("5"), &json!(true)));
        assert_eq!(rank["by"]["lost_share"]["value"], 0.4);
    }
    for asked in [json!({"job": "18"}), json!({"comm": "\"} or up{x=\"\\"})] {
        let (is_error, text) = assistant.call("find_outlier_nodes", &asked);
        assert!(is_error && text.contains("has no such ranks"), "{asked}: {text}");
    }
    let cost: Value = assistant.call("get_cost", &json!({})).1.into();
    assert!(cost.as_str().unwrap().contains("has no values of rules/cost.yaml"), "{cost}");
}
