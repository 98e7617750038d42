//! Files that change while the server runs.

use gpucause_fixture::http_client::{get, request};
use gpucause_fixture::poll::until;
use gpucause_fixture::server::serve;

use super::pairs::Folder;
use super::passwords::{basic, users};
use super::tls_client::Asking;

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let folder = Folder::new();
    let server = serve(&folder.configure(&[], ""));
    let served = || Asking::new(&folder).get(server.address, "/-/healthy").unwrap().certificate;
    let first = served();
    let second = folder.renew();
    assert!(first != second);
    until("the new certificate", || (served() == second).then_some(()));
    let state = server.access.reload_state().unwrap();
    assert!(state.last_succeeded && state.failures == 0, "{state:?}");
}

#[test]
fn a_broken_renewal_keeps_the_old_certificate_and_a_good_one_heals_it() {
    let folder = Folder::new();
    let server = serve(&folder.configure(&[], ""));
    let served = || Asking::new(&folder).get(server.address, "/-/healthy").unwrap().certificate;
    let first = served();
    for (name, text) in [("server.crt", "not a certificate"), ("server.key", "not a key")] {
        let before = server.access.reload_state().unwrap().failures;
        folder.write(name, text);
        until("the failure", || {
            let state = server.access.reload_state().unwrap();
            (state.failures == before + 1 && !state.last_succeeded).then_some(())
        });
        assert_eq!(served(), first);
    }
    let second = folder.renew();
    until("the new certificate", || (served() == second).then_some(()));
    assert!(server.access.reload_state().unwrap().last_succeeded);
}

#[test]
fn users_come_and_go_with_the_file_and_what_is_remembered_goes_too() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(4, &[("alice", "secret"), ("bob", "secret")])));
    let status = |user| request(server.address, "GET", "/", &basic(user, "secret")).status;
    assert_eq!([status("alice"), status("bob")], [200, 200]);
    folder.plain(&users(4, &[("bob", "secret"), ("carol", "secret")]));
    until("the new user", || (status("carol") == 200).then_some(()));
    assert_eq!([status("alice"), status("bob")], [401, 200]);
}

#[test]
fn an_emptied_file_opens_no_door() {
    let folder = Folder::new();
    let server = serve(&folder.plain(&users(4, &[("alice", "secret")])));
    folder.plain("");
    until("the refusal", || (server.access.reload_state().unwrap().failures == 1).then_some(()));
    assert_eq!(get(server.address, "/metrics").status, 401);
    std::fs::remove_file(folder.path("web.yml")).unwrap();
    until("the refusal", || (server.access.reload_state().unwrap().failures == 2).then_some(()));
    assert_eq!(get(server.address, "/metrics").status, 401);
}

#[test]
fn a_new_authority_for_clients_is_taken() {
    let folder = Folder::new();
    let policy = ["client_auth_type: RequireAndVerifyClientCert", "client_ca_file: clients.crt"];
    let (old, new) = (super::pairs::Authority::new(), super::pairs::Authority::new());
    folder.write("clients.crt", &old.certificate.pem());
    let server = serve(&folder.configure(&policy, ""));
    let (before, after) = (old.pair("a.example"), new.pair("a.example"));
    let gets_in = |pair| Asking::with(&folder, pair).get(server.address, "/").is_ok();
    assert!(gets_in(&before) && !gets_in(&after));
    folder.write("clients.crt", &new.certificate.pem());
    until("the new authority", || gets_in(&after).then_some(()));
    assert!(!gets_in(&before));
}
