//! Resolves the `user` of a backend with the machine's list of users.

use std::fs;

use backends::stdio::RunAs;

/// The machine's list of users.
const USERS: &str = "/etc/passwd";

/// The number that stands for no user and no group, also for the kernel.
const NO_NUMBER: u32 = u32::MAX;

/// The user with this name or number; `None` for an empty text, which is the node's own user.
pub(crate) fn resolve(user: &str) -> Result<Option<RunAs>, String> {
    if user.is_empty() {
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(
            "has a `user`, but only a node that runs as root can start a server as another user; \
             leave `user` out"
                .into(),
        );
    }
    let users = fs::read_to_string(USERS).unwrap_or_default();
    let known = users
        .lines()
        .filter_map(read_line)
        .find(|(name, known)| name == user || user.parse().is_ok_and(|uid: u32| uid == known.uid));
    let run_as = match (known, user.parse()) {
        (Some((_, known)), _) => known,
        // A user without a name has a group of the same number.
        (None, Ok(uid)) => RunAs { uid, gid: uid, name: None, home: None },
        (None, Err(_)) => {
            return Err(format!(
                "has the `user` {user:?}, which {USERS} does not list; create the user, or write a number"
            ));
        }
    };
    if run_as.uid == NO_NUMBER || run_as.gid == NO_NUMBER {
        return Err(format!(
            "has the `user` {user:?} with the number {}:{}; {NO_NUMBER} stands for no user and \
             no group; choose another user",
            run_as.uid, run_as.gid
        ));
    }
    Ok(Some(run_as))
}

/// Whether a server with this `user` runs as the node's own user.
pub(crate) fn is_own(user: &str) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match resolve(user) {
        Ok(Some(run_as)) => run_as.uid == own,
        Ok(None) => true,
        // Such a server does not start.
        Err(_) => false,
    }
}

/// `name:password:uid:gid:comment:home:shell`.
fn read_line(line: &str) -> Option<(String, RunAs)> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    let home = fields.nth(1).map(Into::into);
    Some((name.clone(), RunAs { uid, gid, name: Some(name), home }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_of_users_is_read() {
        let (name, user) = read_line("mcp:x:998:997:MCP servers:/var/lib/mcp:/bin/false").unwrap();
        assert_eq!((name.as_str(), user.uid, user.gid), ("mcp", 998, 997));
        assert_eq!(user.home.unwrap().to_str(), Some("/var/lib/mcp"));
        assert!(read_line("broken").is_none());
    }

    #[test]
    fn the_number_of_no_user_is_refused() {
        if rustix::process::geteuid().is_root() {
            let error = resolve("4294967295").unwrap_err();
            assert!(error.contains("stands for no user"), "{error}");
        }
    }

    #[test]
    fn no_user_is_the_nodes_own() {
        assert_eq!(resolve(""), Ok(None));
    }
}
