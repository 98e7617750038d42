"""Runs statements of SQL, given on standard input, in DuckDB, with its extension for SQLite; prints the last one's rows as JSON."""

import json
import pathlib
import sys

import duckdb
import duckdb_extension_sqlite_scanner

package = pathlib.Path(duckdb_extension_sqlite_scanner.__file__).parent
[extension] = package.glob("extensions/*/sqlite_scanner.duckdb_extension")
# It is signed by DuckDB, which checks that; nothing is downloaded.
connection = duckdb.connect(config={"autoinstall_known_extensions": False})
connection.execute(f"LOAD '{extension}'")
connection.execute(sys.stdin.read())
print(json.dumps(connection.fetchall()))
