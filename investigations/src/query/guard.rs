//! A statement may read tables, call pure functions and describe the schema.

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

/// First words of statements that read.
const READERS: [&str; 5] = ["SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"];

/// Pragmas that describe a table or index, whose name they take.
const PRAGMAS_OF_TABLES: &str =
    "table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list";
/// Pragmas that describe the file. Only without a value, which would set it.
const PRAGMAS_OF_FILE: &str = "user_version page_count page_size encoding compile_options";

/// Functions that only compute a value of their arguments.
const FUNCTIONS: &str = "\
    -> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat \
    concat_ws cos cosh count cume_dist current_date current_time current_timestamp date \
    datetime degrees dense_rank exp first_value floor format glob group_concat hex if \
    ifnull iif json json_array json_array_length json_each json_error_position json_extract \
    json_group_array json_group_object json_insert json_object json_patch json_pretty \
    json_quote json_remove json_replace json_set json_tree json_type json_valid julianday \
    lag last_value lead length like likelihood likely ln log log10 log2 lower max median \
    min mod nth_value ntile nullif octet_length percent_rank percentile percentile_cont \
    percentile_disc pi pow power printf quote radians random randomblob rank round \
    row_number sign sin sinh soundex sqlite_version sqrt strftime string_agg substr \
    substring subtype sum tan tanh time timediff total trunc typeof unhex unicode unixepoch \
    unlikely upper zeroblob";

/// Checks that the statement begins like one that reads; otherwise returns what is wrong with it.
pub(super) fn begins_to_read(sql: &str) -> Result<(), String> {
    if sql.contains('\0') {
        return Err("it contains a zero byte".into());
    }
    let rest = after_comments(sql);
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
    if READERS.iter().any(|reader| reader.eq_ignore_ascii_case(&word)) {
        return Ok(());
    }
    Err(match &*word {
        "" => "it does not begin with a SQL keyword".into(),
        word => format!("{} is not a reading statement", word.to_ascii_uppercase()),
    })
}

fn after_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let after = match rest.get(..2) {
            Some("--") => rest.split_once('\n').map(|(_, after)| after),
            Some("/*") => rest[2..].split_once("*/").map(|(_, after)| after),
            _ => return rest,
        };
        rest = after.unwrap_or_default().trim_start();
    }
}

/// Allows or denies an action that a statement asks of SQLite.
pub(super) fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_in = |names: &str, name: &str| {
        names.split_ascii_whitespace().any(|known| known.eq_ignore_ascii_case(name))
    };
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive | AuthAction::Read { .. } => true,
        AuthAction::Function { function_name } => is_in(FUNCTIONS, function_name),
        AuthAction::Pragma { pragma_name, pragma_value } => {
            is_in(PRAGMAS_OF_TABLES, pragma_name)
                || (pragma_value.is_none() && is_in(PRAGMAS_OF_FILE, pragma_name))
        }
        _ => false,
    };
    if allowed { Authorization::Allow } else { Authorization::Deny }
}
