//! `roundhouse add`, `roundhouse import` and `roundhouse check --start`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{file, roundhouse, run_to_exit};

/// A server of MCP in a shell: answers `initialize`, and lists a tool on two pages.
const SERVER: &str = r#"while read -r line; do
id=${line#*\"id\":}; id=${id%%[,\}]*}
case $line in
*'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"shell","version":"3"}}}';;
*'"next"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"second","inputSchema":{"type":"object"}}]}}';;
*'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"first","inputSchema":{"type":"object"}}],"nextCursor":"next"}}';;
esac
done"#;

const COMMENTED: &str = "# The file of the operator.\n[front]\nlisten = \"127.0.0.1:0\" # any port\n\n\
                         [tenants.old]\nauth = \"open\"\n[tenants.old.backends.x]\nkind = \"stdio\"\n\
                         command = \"cat\"";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn add_appends_a_tenant_and_keeps_every_comment() {
    let file = file(COMMENTED);
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o640)).unwrap();
    let path = file.path().to_str().unwrap();
    let args = ["add", "new", "--into", path, "--env", "LOG=info", "--", "sh", "-c", "exit"];
    let (code, stdout, stderr) = run_to_exit(&args);
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert_eq!(stdout, format!("added tenant new to {path}\n"));
    let added = "\n\n[tenants.new]\nauth = \"open\"  # every client that can reach the endpoint may use \
                 it\n\n[tenants.new.backends.main]\nkind = \"stdio\"\ncommand = \"sh\"\n\
                 args = [\"-c\", \"exit\"]\nenv = { LOG = \"info\" }\n";
    assert_eq!(read(file.path()), format!("{COMMENTED}{added}"));
    let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(run_to_exit(&["check", path]).0, Some(0));

    let (code, _, stderr) = run_to_exit(&args);
    assert_eq!(code, Some(1));
    assert_eq!(
        stderr,
        format!(
            "roundhouse: {path} has the tenant `new` already; nothing was written: remove the tenant \
             from the file, or give the new one another name\n"
        )
    );
    assert_eq!(read(file.path()), format!("{COMMENTED}{added}"));
}

#[test]
fn add_creates_a_file_that_only_its_owner_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.toml");
    let args = ["add", "a", "--into", path.to_str().unwrap(), "--", "cat"];
    let (code, _, stderr) = run_to_exit(&args);
    assert_eq!(code, Some(0), "{stderr}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(read(&path).starts_with("[tenants.a]\n"));
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_result_that_would_not_be_valid_is_not_written() {
    for (before, name, wanted) in [
        (COMMENTED, "New", "the name of tenant `New` has 'N' in it"),
        ("front.lisen = 3\n", "new", "unknown key `front.lisen`"),
        ("[front\n", "new", "TOML syntax error"),
        ("tenants = {}\n", "new", "TOML syntax error"),
    ] {
        let file = file(before);
        let path = file.path().to_str().unwrap();
        let (code, stdout, stderr) = run_to_exit(&["add", name, "--into", path, "--", "cat"]);
        assert_eq!((code, &*stdout), (Some(1), ""));
        assert!(stderr.contains("would not be valid with the new tables; nothing was written"));
        assert!(stderr.contains(wanted), "{stderr}");
        assert_eq!(read(file.path()), before);
    }
}

#[test]
fn import_takes_the_servers_of_a_client_and_says_which_it_leaves_out() {
    let client = file(
        r#"{"mcpServers": {
            "Files": {"command": "cat", "args": ["-u"], "env": {"API_KEY": "hunter2"}},
            "web": {"type": "http", "url": "https://a.example/mcp"},
            "input": {"command": "cat", "env": {"TOKEN": "${input:token}"}}}}"#,
    );
    let client = client.path().to_str().unwrap();
    let (code, stdout, stderr) = run_to_exit(&["import", client]);
    assert_eq!(code, Some(0), "{stderr}");
    for wanted in ["[tenants.files]\n", "env = { API_KEY = \"hunter2\" }", "[tenants.input]\n"] {
        assert!(stdout.contains(wanted), "{stdout}");
    }
    for wanted in [
        "note: `web` is left out: it is reached over HTTP",
        "note: `Files` is named `files`",
        "holds what looks like a secret (API_KEY)",
        "`tenants.input.backends.main.env.TOKEN` has a part such as ${NAME}",
    ] {
        assert!(stderr.contains(wanted), "{wanted}: {stderr}");
    }
    assert!(!stderr.contains("hunter2"), "{stderr}");

    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("roundhouse.toml");
    let into_path = into.to_str().unwrap();
    let (code, again, stderr) = run_to_exit(&["import", client, "--into", into_path]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(again, format!("added tenants files, input to {into_path}\n"));
    assert_eq!(read(&into), stdout);
    let (code, _, stderr) = run_to_exit(&["import", client, "--into", into_path]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("has the tenant `files`, `input` already; nothing was"), "{stderr}");
    assert_eq!(read(&into), stdout);
}

#[test]
fn check_starts_each_server_and_lists_its_tools() {
    let tenant = |name: &str, script: &str| {
        format!(
            "[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\nkind = 'stdio'\n\
             command = 'sh'\nargs = ['-c', '''{script}''']\n"
        )
    };
    let good = file(&tenant("good", SERVER));
    let (code, stdout, stderr) = run_to_exit(&["check", "--start", good.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let line = stdout.lines().find(|line| line.starts_with("tenant good: started")).expect("line");
    assert!(line.ends_with("s (shell 3), tools: 2 (first, second)"), "{line}");

    let all = tenant("bad", "echo API_KEY is missing >&2; exit 3")
        + &tenant("good", SERVER)
        + &tenant("mute", "cat >/dev/null")
        + &tenant("parrot", "cat")
        + &tenant("patient", &format!("sleep 2\n{SERVER}"))
        + "start_secs = 30\n";
    let all = file(&format!("node.sandbox = 'none'\nsessions.start_secs = 1\n{all}"));
    let (code, stdout, stderr) = run_to_exit(&["check", "--start", all.path().to_str().unwrap()]);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    let line = |start: &str| stdout.lines().find(|line| line.starts_with(start)).expect(start);
    assert!(line("tenant bad: failed").contains("the server exited with status 3"), "{stdout}");
    let parrot = line("tenant parrot: failed");
    assert!(parrot.contains("sent our own `initialize` back; it is not an MCP server"), "{parrot}");
    let mute = line("tenant mute: failed");
    assert!(mute.ends_with("did not answer within 1 s (`sessions.start_secs`)"), "{stdout}");
    assert!(line("tenant patient: started").ends_with("tools: 2 (first, second)"), "{stdout}");
    assert!(line("tenant good: started").ends_with("tools: 2 (first, second)"), "{stdout}");
    assert!(stderr.contains("API_KEY is missing"), "{stderr}");
    assert!(
        stderr.ends_with("servers that did not start: 3; the lines above say why\n"),
        "{stderr}"
    );
}

/// The files in the ConfigMap of the page for operators, as (name, text).
fn config_map() -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploying.md");
    let page = read(&page);
    let map =
        page.split("```").find(|block| block.contains("kind: ConfigMap")).expect("an example");
    let (_, data) = map.split_once("\ndata:\n").expect("data");
    let mut files: Vec<(String, String)> = Vec::new();
    for line in data.lines().take_while(|line| *line != "---") {
        match (line.strip_prefix("    "), files.last_mut()) {
            (Some(text), Some((_, file))) => *file += &format!("{text}\n"),
            _ if line.is_empty() => files.last_mut().expect("a file").1.push('\n'),
            _ => {
                let name = line.trim().strip_suffix(": |").expect("a name");
                files.push((name.to_owned(), String::new()));
            }
        }
    }
    files
}

/// A folder with a folder of tenants, the secrets of the tenant `acme`, and the programs of the pages,
/// which not every machine has.
fn folder_of_tenants(files: &[(String, String)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tenants = dir.path().join("tenants.d");
    std::fs::create_dir(&tenants).unwrap();
    for (name, text) in files {
        std::fs::write(tenants.join(name), text).unwrap();
    }
    std::fs::create_dir(dir.path().join("acme")).unwrap();
    let secrets = ["api-key", "db-password", "client-secret", "sign-in-secret"];
    let secrets = secrets.map(|name| (format!("acme/{name}"), 0o400));
    let programs = [("npx".to_owned(), 0o755), ("uvx".to_owned(), 0o755)];
    for (name, mode) in secrets.into_iter().chain(programs) {
        let file = dir.path().join(name);
        std::fs::write(&file, "hunter2").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    }
    dir
}

/// Checks settings in such a folder; returns what `check` prints if it accepts them.
fn accepted(dir: &Path, more: &str) -> String {
    let main = dir.join("roundhouse.toml");
    let head = "node.tenants_dir = 'tenants.d'\nnode.secrets_dir = '.'\nnode.sandbox = 'none'\n";
    std::fs::write(&main, format!("{head}{more}")).unwrap();
    let mut check = roundhouse(&["check", main.to_str().unwrap()]);
    check.env("PATH", dir).env("ROUNDHOUSE_SECRET_ACME__DB_USER", "acme");
    let output = check.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    stdout
}

/// Checks settings in such a folder; returns why `check` refuses them.
fn refused(dir: &Path, more: &str) -> String {
    let main = dir.join("roundhouse.toml");
    std::fs::write(&main, format!("node.secrets_dir = '.'\n{more}")).unwrap();
    let output = roundhouse(&["check", main.to_str().unwrap()]).output().unwrap();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_config_map_in_the_documentation_is_a_valid_folder_of_tenants() {
    let files = config_map();
    assert!(files.len() > 1, "{files:?}");
    let dir = folder_of_tenants(&files);
    let stdout = accepted(dir.path(), "");
    for (name, _) in &files {
        let tenant = name.strip_suffix(".toml").expect("a file of a tenant");
        assert!(stdout.contains(&format!("tenant {tenant}: /{tenant}/mcp")), "{stdout}");
    }
}

#[test]
fn the_folder_and_the_secrets_in_the_documentation_are_accepted() {
    let page = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md"),
    )
    .unwrap();
    let block = |with: &str| {
        let block = page.split("```toml\n").find(|block| block.contains(with)).expect(with);
        block.split("```").next().unwrap().to_owned()
    };
    let file = ("acme.toml".to_owned(), block("# tenants.d/acme.toml"));
    let dir = folder_of_tenants(&[file]);
    assert!(accepted(dir.path(), "").contains("tenant acme: /acme/mcp"));

    let secrets = block("${env:DB_USER}").replace("command = \"server\"", "command = \"npx\"");
    let dir = folder_of_tenants(&[]);
    let stdout = accepted(dir.path(), &format!("tenants.acme.auth = 'open'\n{secrets}"));
    assert!(stdout.contains("tenant acme: /acme/mcp") && !stdout.contains("hunter2"), "{stdout}");
}

#[test]
fn the_credential_of_a_remote_server_in_the_documentation_is_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```toml\n").find(|block| block.contains("${file:api-key}")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = folder_of_tenants(&[]);
    let stdout = accepted(dir.path(), &format!("tenants.acme.auth = 'open'\n{block}"));
    assert!(stdout.contains("backend main (http)") && !stdout.contains("hunter2"), "{stdout}");
}

#[test]
fn the_revision_of_a_remote_server_in_the_documentation_is_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```toml\n").find(|block| block.contains("revision = ")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = folder_of_tenants(&[]);
    let tenant = format!("tenants.acme.auth = 'open'\n{block}");
    assert!(accepted(dir.path(), &tenant).contains("backend main (http)"));
    let refusal = refused(dir.path(), &tenant.replace("DRAFT-2026-v1", "2026-01-01"));
    assert!(refusal.contains("2025-11-25, DRAFT-2026-v1"), "{refusal}");
}

#[test]
fn the_client_credentials_in_the_documentation_are_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```toml\n").find(|block| block.contains("client_credentials")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = folder_of_tenants(&[]);
    let stdout = accepted(dir.path(), &format!("tenants.acme.auth = 'open'\n{block}"));
    assert!(stdout.contains("backend main (http)") && !stdout.contains("hunter2"), "{stdout}");
}

#[test]
fn a_credential_of_a_remote_server_with_problems_is_refused() {
    let dir = folder_of_tenants(&[]);
    let refusal = |lines: &str| {
        refused(
            dir.path(),
            &format!(
                "tenants.acme.auth = 'open'\n[tenants.acme.backends.main]\nkind = 'http'\n\
                 url = 'https://mcp.example.com/mcp'\n[tenants.acme.backends.main.credential]\n{lines}"
            ),
        )
    };
    let at = "tenants.acme.backends.main";
    for (lines, expected) in [
        (
            "grant = 'client_credentials'",
            format!("`{at}`: `credential.client_id` is missing; write"),
        ),
        ("client_id = 'hunter2'", format!("`{at}`: `credential.grant` is missing; write")),
        ("grant = 'password'", "client_credentials".to_owned()),
        ("grnt = 'x'", "grant".to_owned()),
        ("client_secret = '${file:nowhere}'", format!("`{at}.credential.client_secret`")),
    ] {
        let text = refusal(lines);
        assert!(text.contains(&expected) && !text.contains("hunter2"), "{lines}: {text}");
    }
}

#[test]
fn the_token_exchange_in_the_documentation_is_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block =
        page.split("```toml\n").find(|block| block.contains("= \"token_exchange\"")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = folder_of_tenants(&[]);
    let url = "front.public_url = 'https://clients.example.com'\n";
    let stdout = accepted(dir.path(), &format!("{url}{block}"));
    assert!(stdout.contains("backend main (http)") && !stdout.contains("hunter2"), "{stdout}");
    let keys = block.replace("auth = \"oauth\"", "auth = \"open\"");
    let keys = keys.replace("[tenants.acme.oauth]\nissuer = \"https://auth.example.com\"\n", "");
    let text = refused(dir.path(), &format!("{url}{keys}"));
    assert!(text.contains("credential.grant") && text.contains("tenants.acme.auth"), "{text}");
}

#[test]
fn the_linked_accounts_in_the_documentation_are_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block =
        page.split("```toml\n").find(|block| block.contains("= \"authorization_code\"")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = folder_of_tenants(&[]);
    let url = "front.public_url = 'https://clients.example.com'\n";
    let stdout = accepted(dir.path(), &format!("{url}{block}"));
    assert!(stdout.contains("backend main (http)") && !stdout.contains("hunter2"), "{stdout}");
    let hosts = block.replace("auth = \"oauth\"", "auth = \"oauth\"\nhosts = [\"a.example.com\"]");
    let text = refused(dir.path(), &hosts);
    assert!(text.contains("credential.grant") && text.contains("front.public_url"), "{text}");
}
