//! What the program says of each mistake: the whole text, with the line, the key and the remedy.

use super::{file, roundhouse, run_to_exit};

/// A tenant with a server that every machine has.
const TENANT: &str =
    "[tenants.a]\nauth = 'open'\n[tenants.a.backends.b]\nkind = 'stdio'\ncommand = 'cat'\n";

/// What `check` says of a file with these settings, with `FILE` for its path.
fn said_of(toml: &str, variables: &[(&str, &str)]) -> String {
    let file = file(toml);
    let path = file.path().to_str().unwrap();
    let mut command = roundhouse(&["check", path]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    // Warnings are among what `check` prints of a file that a node accepts.
    let said = if output.status.success() {
        let printed = String::from_utf8(output.stdout).unwrap();
        let is_of_file = |line: &&str| line.starts_with(path) && line.contains("warning: ");
        printed.lines().filter(is_of_file).collect::<Vec<_>>().join("\n")
    } else {
        assert!(output.stdout.is_empty(), "{toml}");
        String::from_utf8(output.stderr).unwrap()
    };
    said.replace(path, "FILE").trim_start_matches("roundhouse: ").trim_end().to_owned()
}

#[track_caller]
fn check_all(rows: &[(&str, &str)]) {
    for (toml, expected) in rows {
        let toml = toml.replace("TENANT", TENANT);
        assert_eq!(&said_of(&toml, &[]), expected, "{toml}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_its_line() {
    check_all(&[
        (
            "[front\nlisten 3\n[log]\nlevel = loud\n",
            "3 findings:\n\
             - FILE:1: TOML syntax error in column 7: unclosed table, expected `]`; a line is `key = \
             value`, with text in quotation marks, or a header as in [front]\n\
             - FILE:2: TOML syntax error in column 8: key with no value, expected `=`; a line is `key \
             = value`, with text in quotation marks, or a header as in [front]\n\
             - FILE:4: TOML syntax error in column 9: string values must be quoted, expected literal \
             string; a line is `key = value`, with text in quotation marks, or a header as in [front]",
        ),
        (
            "{\"mcpServers\": {}}",
            "FILE:1: this is JSON, and settings are TOML; for the servers of a client's file \
             (`mcpServers`) write `roundhouse import FILE`",
        ),
        (
            "front:\n  listen: x\n",
            "FILE:1: this is YAML, and settings are TOML; write [front] for a section and `listen = \
             \"127.0.0.1:8080\"` for a key",
        ),
    ]);
    for (path, expected) in [
        ("nowhere.toml", "nowhere.toml: there is no such file; write the path of a settings file"),
        ("/tmp", "/tmp: is a folder; write the path of a settings file in it"),
    ] {
        let (code, _, stderr) = run_to_exit(&["check", path]);
        assert_eq!((code, stderr.trim()), (Some(1), &*format!("roundhouse: {expected}")));
    }
}

#[test]
fn a_value_that_cannot_be_used_is_named_with_its_line_its_key_and_the_remedy() {
    check_all(&[
        (
            "[sessions]\nidle_secs = 'ten'\nTENANT",
            "FILE:2: `sessions.idle_secs` is \"ten\"; write a whole number without quotation marks, \
             0 or above",
        ),
        (
            "[sessions]\nidle_secs = -1\nTENANT",
            "FILE:2: `sessions.idle_secs` is -1; write a whole number without quotation marks, 0 or \
             above",
        ),
        (
            "TENANTmemory_bytes_max = '512MB'\n",
            "FILE:6: `tenants.a.backends.b.memory_bytes_max` is \"512MB\"; write a whole number of \
             bytes, or text with a unit of 1024, as in \"64K\", \"512M\" or \"2G\"",
        ),
        (
            "front.sessions_per_address_burst = 5000000000\nTENANT",
            "FILE:1: `front.sessions_per_address_burst` is 5000000000, which is too large; write at \
             most 4294967295",
        ),
        (
            "front.listen = ':8080'\nTENANT",
            "FILE:1: `front.listen` is \":8080\", which has no host; write \"127.0.0.1:8080\" (this \
             machine only) or \"0.0.0.0:8080\" (every interface)",
        ),
        (
            "log.format = 'xml'\nTENANT",
            "FILE:1: `log.format` is \"xml\", which is not known; write \"text\" or \"json\"",
        ),
        (
            "log.level = 'loud'\nTENANT",
            "FILE:1: `log.level` is \"loud\", of which \"loud\" is not known; write error, warn, info, \
             debug or trace, and for a single crate crate=level, with commas between, as in \
             \"info,front=debug\"",
        ),
        (
            "TENANT[tenants.a.limits]\nsessions_max = 'x'\n",
            "FILE:7: `tenants.a.limits.sessions_max` is \"x\"; write a whole number without quotation \
             marks, 0 or above",
        ),
        (
            "TENANTargs = '-y'\n",
            "FILE:6: `tenants.a.backends.b.args` is \"-y\"; write a list, as in [\"a\", \"b\"]",
        ),
        (
            "TENANTsandbox = 'yes'\n",
            "FILE:6: `tenants.a.backends.b.sandbox` is \"yes\", which is not known; write \"auto\", \
             \"required\" or \"none\"",
        ),
        (
            "store.password = 12\nTENANT",
            "FILE:1: `store.password` is a value that is not repeated here, since it may be a secret; \
             write text in quotation marks",
        ),
    ]);
}

#[test]
fn what_a_tenant_lacks_is_named_at_the_line_of_its_table() {
    check_all(&[
        (
            "[tenants.a]\n[tenants.a.backends.b]\nkind = 'stdio'\n",
            "2 findings:\n\
             - FILE:1: `tenants.a.auth` is missing; write `auth = \"open\"` under [tenants.a] if every \
             client that can reach the endpoint may use it, `auth = \"keys\"` if each client has a \
             key, or `auth = \"oauth\"` if clients have tokens of an issuer\n\
             - FILE:2: `tenants.a.backends.b` has no `command`; write the program to run, as in \
             `command = \"npx\"`",
        ),
        (
            "[tenants.a]\nauth = 'bearer'\nallowed_origins = ['*', 'https://b.example/']\n",
            "4 findings:\n\
             - FILE:1: `tenants.a.backends` has no backend; write one, as in \
             [tenants.a.backends.main]\n\
             - FILE:2: `tenants.a.auth` has \"bearer\", which is not known; write `auth = \"keys\"` if \
             each client has a key, `auth = \"oauth\"` if clients have tokens of an issuer, or \
             `auth = \"open\"` if every client that can reach the endpoint may \
             use it\n\
             - FILE:3: `tenants.a.allowed_origins` has \"*\", which no browser sends; there is no \
             wildcard; list each origin, as in \"https://app.example.com\"\n\
             - FILE:3: `tenants.a.allowed_origins` has \"https://b.example/\", which no browser sends; \
             leave out the slash at its end: \"https://b.example\"",
        ),
        (
            "[tenants.a]\nauth = 'open'\n[tenants.a.backends.b]\nkind = 'stdio'\n\
             command = 'npx -y foo'\ncwd = '/nowhere'\n",
            "2 findings:\n\
             - FILE:5: `tenants.a.backends.b.command` is \"npx -y foo\", and no shell splits it into \
             words; write `command = \"npx\"` and `args = [\"-y\", \"foo\"]`\n\
             - FILE:6: `tenants.a.backends.b.cwd` is \"/nowhere\", which is not there; create the \
             folder, or leave `cwd` out",
        ),
        (
            "[tenants.a]\nauth = 'open'\n[tenants.a.backends.b]\nkind = 'stdio'\n\
             command = 'no-such-server'\n",
            "FILE:5: `tenants.a.backends.b.command` is \"no-such-server\", which is not in the PATH of \
             this process; install it, or write its whole path, as in \"/usr/bin/no-such-server\"",
        ),
    ]);
}

#[test]
fn a_network_setting_that_cannot_work_is_named_with_the_remedy() {
    check_all(&[
        (
            "front.allowed_origins = ['*']\nTENANT",
            "FILE:1: `front.allowed_origins` is \"*\"; there is no wildcard; list each origin, as in \
             \"https://app.example.com\"",
        ),
        (
            "front.public_url = 'mcp.example.com'\nTENANT",
            "FILE:1: `front.public_url` is \"mcp.example.com\"; write an http or https URL without \
             user, query and wildcard, as in \"https://mcp.example.com\"",
        ),
        (
            "front.public_url = 'https://mcp.example.com/a/mcp'\nTENANT",
            "FILE:1: `front.public_url` is \"https://mcp.example.com/a/mcp\"; it ends with the path of \
             an endpoint, and each tenant has its own; write \"https://mcp.example.com\"",
        ),
        (
            "store.url = 'redis://:hunter2@'\nTENANT",
            "FILE:1: `store.url` is not the URL of a Redis: it has no host, or no port; write it as \
             in \"redis://127.0.0.1:6379\", \"redis+cluster://host:6379\" or \
             \"redis+sentinel://host:26379/master\"",
        ),
        (
            "store.url = 'redis://:hunter2@127.0.0.1:1'\nTENANT",
            "FILE:1: warning: `store.url` names a store that nodes can share, but this node is on its \
             own: no other node may use that store with the same `store.prefix`; for a cluster write \
             `cluster.listen` and `cluster.secret` on every node, and for a single node that keeps its \
             sessions in Redis ignore this warning",
        ),
        (
            "[cluster]\nlisten = '0.0.0.0:7070'\nadvertise = '0.0.0.0:7070'\nTENANT",
            "3 findings:\n\
             - FILE:2: `cluster.secret` is missing and must have at least 32 bytes, the same on every \
             node; make one with `openssl rand -hex 32`, and write it as `cluster.secret_file`, as the \
             variable ROUNDHOUSE__CLUSTER__SECRET or as `cluster.secret`; or write [cluster.tls]; or \
             leave `cluster.listen` out\n\
             - FILE:2: `cluster.listen` is set, but `store.url` names no store that other nodes can \
             reach; write one, as in `store.url = \"redis://127.0.0.1:6379\"`, or leave \
             `cluster.listen` out\n\
             - FILE:3: `cluster.advertise` is \"0.0.0.0:7070\", to which no peer can connect; write the \
             address of this machine for its peers, as in \"10.0.0.4:7070\"",
        ),
        (
            "[front]\nbody_bytes_max = '8M'\nbodies_bytes_max = '4M'\nTENANT",
            "FILE:3: tenant `a` may have 4194304 bytes of incomplete bodies, less than the 8388608 of \
             one body; raise `front.bodies_bytes_max`, of which it has at most half beside other \
             tenants, or `tenants.a.limits.bodies_bytes_max`, or lower `front.body_bytes_max`",
        ),
    ]);
}

// A reader mends all mistakes of a file at once.
#[test]
fn a_file_with_mistakes_of_every_kind_shows_all_of_them() {
    check_all(&[(
        "front.lisen = 'x'\nlog.level = 'loud'\n[sessions]\nidle_secs = 'ten'\n\
         [store]\nappend_window_ms = 101\nurl = 'redis://h'\n[tenants.Acme]\nauth = 'open'\n\
         [tenants.Acme.backends.b]\nkind = 'stdio'\ncommand = 'no such'\ncwd = '/nowhere'\n\
         [tenants.a]\nidle_stop_secs = '3'\n[tenants.a.backends.b]\nkind = 'stdio'\n\
         comand = 'x'\nnetwork = 'none'\n",
        "11 findings:\n\
         - FILE:1: unknown key `front.lisen`; did you mean `front.listen`?\n\
         - FILE:2: `log.level` is \"loud\", of which \"loud\" is not known; write error, warn, info, \
         debug or trace, and for a single crate crate=level, with commas between, as in \
         \"info,front=debug\"\n\
         - FILE:4: `sessions.idle_secs` is \"ten\"; write a whole number without quotation marks, 0 or \
         above\n\
         - FILE:6: `store.append_window_ms` is 101, which would delay every event of a stream; write \
         at most 100\n\
         - FILE:8: the name of tenant `Acme` has 'A' in it; use only a-z, 0-9, `-` and `_`, since the \
         name stands in the endpoint's path\n\
         - FILE:12: `tenants.Acme.backends.b.command` is \"no such\", and no shell splits it into \
         words; write `command = \"no\"` and `args = [\"such\"]`\n\
         - FILE:13: `tenants.Acme.backends.b.cwd` is \"/nowhere\", which is not there; create the \
         folder, or leave `cwd` out\n\
         - FILE:14: `tenants.a.auth` is missing; write `auth = \"open\"` under [tenants.a] if every \
         client that can reach the endpoint may use it, `auth = \"keys\"` if each client has a key, or `auth = \"oauth\"` if clients have tokens of an issuer\n\
         - FILE:15: `tenants.a.idle_stop_secs` is \"3\"; write a whole number without quotation marks, \
         0 or above\n\
         - FILE:18: unknown key `tenants.a.backends.b.comand`; did you mean \
         `tenants.a.backends.b.command`?\n\
         - FILE:7: warning: `store.url` names a Redis without a password, and the server of \
         `tenants.Acme.backends.b` can connect to it; give Redis a password and write it as \
         `store.password_file` (docs/redis.md), or write `tenants.Acme.backends.b.network = \"none\"`",
    )]);
}

#[test]
fn a_variable_is_named_in_place_of_a_line_and_its_value_is_never_repeated() {
    let variables = [
        ("ROUNDHOUSE_FRONT_LISTEN", "hunter2"),
        ("ROUNDHOUSE__FRONT_LISTEN", "hunter2"),
        ("ROUNDHOUSE__SESSIONS__IDLE_SECS", "hunter2"),
        ("ROUNDHOUSE_PORT", "tcp://10.0.0.1:80"),
    ];
    assert_eq!(
        said_of(TENANT, &variables),
        "3 findings:\n\
         - ROUNDHOUSE__FRONT_LISTEN: unknown key `front_listen`; write two underscores between the \
         parts of a key: ROUNDHOUSE__FRONT__LISTEN\n\
         - ROUNDHOUSE__SESSIONS__IDLE_SECS: `sessions.idle_secs` is set by this variable to a value; \
         write a whole number without quotation marks, 0 or above\n\
         - ROUNDHOUSE_FRONT_LISTEN: warning: the node does not read this variable; write two \
         underscores between the parts of a key, as in ROUNDHOUSE__FRONT__LISTEN"
    );
}

#[test]
fn a_command_line_that_cannot_be_read_gets_the_one_to_write() {
    for (args, expected) in [
        (
            &["serve", "npx", "-y", "foo"][..],
            "`npx` is no command of roundhouse; a server to host is written behind `--`: `roundhouse \
             serve -- npx -y foo`",
        ),
        (
            &["serve", "--listen", "127.0.0.1:0", "npx", "foo"],
            "`npx` is no command of roundhouse; a server to host is written behind `--`: `roundhouse \
             serve --listen 127.0.0.1:0 -- npx foo`",
        ),
        (
            &["npx", "-y", "foo"],
            "`npx` is no command of roundhouse; a server to host is written behind `--`: `roundhouse \
             serve -- npx -y foo`",
        ),
        (
            &["--port", "80"],
            "there is no `--port`; write the address and the port: `--listen 127.0.0.1:80` (this \
             machine only) or `--listen 0.0.0.0:80` (every interface)",
        ),
        (
            &["serve", "--port=81"],
            "there is no `--port`; write the address and the port: `--listen 127.0.0.1:81` (this \
             machine only) or `--listen 0.0.0.0:81` (every interface)",
        ),
        (&["chek", "f"], "there is no command `chek`; did you mean `check`?"),
        (
            &["--listen", ":80"],
            "invalid value ':80' for '--listen <ADDRESS>': this has no host; write \"127.0.0.1:80\" \
             (this machine only) or \"0.0.0.0:80\" (every interface)",
        ),
    ] {
        let (code, stdout, stderr) = run_to_exit(args);
        assert_eq!((code, &*stdout), (Some(2), ""), "{args:?}");
        let first = stderr.lines().next().unwrap_or_default();
        assert_eq!(first, format!("error: {expected}"), "{args:?}");
    }
}

#[test]
fn each_help_text_has_an_example_and_says_where_settings_are_documented() {
    for command in ["", "serve", "stdio", "check", "add", "import"] {
        let args = [command, "--help"];
        let (code, stdout, _) = run_to_exit(if command.is_empty() { &args[1..] } else { &args });
        assert_eq!(code, Some(0));
        for wanted in ["Examples:\n  roundhouse ", "ROUNDHOUSE__SECTION__KEY", "configuration.md"] {
            assert!(stdout.contains(wanted), "{command}: {stdout}");
        }
    }
}
