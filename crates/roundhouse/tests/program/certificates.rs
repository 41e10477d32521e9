//! The certificates for clients, as the page of settings shows them.

use std::path::Path;

use super::roundhouse;

#[test]
fn the_certificates_in_the_documentation_are_accepted() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```toml\n").find(|block| block.contains("[front.tls]")).unwrap();
    let block = block.split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut hosts = Vec::new();
    for line in block.lines().filter(|line| line.starts_with("cert_file")) {
        let file = line.split('"').nth(1).unwrap();
        let host = Path::new(file).file_stem().unwrap().to_str().unwrap();
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let write = |ending: &str, text: String| {
            let file = dir.path().join(format!("{host}.{ending}"));
            std::fs::write(&file, text).unwrap();
            let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(file, own).unwrap();
        };
        write("pem", made.cert.pem());
        write("key", made.signing_key.serialize_pem());
        hosts.push(host.to_owned());
    }
    assert_eq!(hosts, ["mcp.example.com", "acme.example.com"]);
    let folder = dir.path().to_str().unwrap();
    let tenant = "[tenants.acme]\nauth = 'open'\nhosts = ['acme.example.com']\n\
                  [tenants.acme.backends.main]\nkind = 'native'\nname = 'everything'\n";
    let main = dir.path().join("roundhouse.toml");
    std::fs::write(&main, block.replace("/etc/roundhouse/tls", folder) + tenant).unwrap();
    let output = roundhouse(&["check", "--strict", main.to_str().unwrap()]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("clients: 0.0.0.0:443 over TLS"), "{stdout}");
    assert!(stdout.contains("certificate acme: for acme.example.com, ends on "), "{stdout}");
    assert!(!stdout.contains("certificate of `front.tls`"), "{stdout}");
}
