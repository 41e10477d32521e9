//! The Lua scripts, and the commands that run them.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline};

use crate::metrics::Operation;

/// The name of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptName {
    Create,
    Claim,
    Append,
    Reassert,
    Save,
    ExtendState,
    Release,
    Finish,
    EndCorrupt,
    Renew,
    Leave,
    Mark,
    Revoke,
}

/// Every script. The scripts about a session begin with common functions. The append script
/// begins with a fast path for the ordinary case.
static SCRIPTS: LazyLock<[Script; 13]> = LazyLock::new(|| {
    let alone = |name, text: &str| Script::new(name, text.to_owned());
    let head = include_str!("scripts/head.lua");
    let session = |name, text| Script::new(name, format!("{head}{text}"));
    let ordinary = include_str!("scripts/ordinary.lua");
    let append = include_str!("scripts/append.lua");
    let append = Script::new(ScriptName::Append, format!("{ordinary}{head}{append}"));
    [
        session(ScriptName::Create, include_str!("scripts/create.lua")),
        session(ScriptName::Claim, include_str!("scripts/claim.lua")),
        append,
        session(ScriptName::Reassert, include_str!("scripts/reassert.lua")),
        session(ScriptName::Save, include_str!("scripts/save.lua")),
        session(ScriptName::ExtendState, include_str!("scripts/extend_state.lua")),
        session(ScriptName::Release, include_str!("scripts/release.lua")),
        session(ScriptName::Finish, include_str!("scripts/finish.lua")),
        alone(ScriptName::EndCorrupt, include_str!("scripts/end_corrupt.lua")),
        alone(ScriptName::Renew, include_str!("scripts/renew.lua")),
        alone(ScriptName::Leave, include_str!("scripts/leave.lua")),
        alone(ScriptName::Mark, include_str!("scripts/mark.lua")),
        alone(ScriptName::Revoke, include_str!("scripts/revoke.lua")),
    ]
});

impl ScriptName {
    /// The command that runs the script on these keys. The caller adds the arguments.
    pub(super) fn on<K: AsRef<str>>(self, keys: &[K]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(SCRIPTS[self as usize].hash.as_str()).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        command
    }
}

impl From<ScriptName> for Operation {
    fn from(name: ScriptName) -> Self {
        match name {
            ScriptName::Create => Self::Create,
            ScriptName::Claim => Self::Claim,
            ScriptName::Append => Self::Append,
            ScriptName::Reassert => Self::Reassert,
            ScriptName::Save | ScriptName::ExtendState => Self::Save,
            ScriptName::Release => Self::Release,
            ScriptName::Finish | ScriptName::EndCorrupt => Self::End,
            ScriptName::Renew => Self::Renew,
            ScriptName::Leave => Self::Leave,
            ScriptName::Mark => Self::MarkDead,
            ScriptName::Revoke => Self::Revoke,
        }
    }
}

/// The commands that load every script.
pub(super) fn load_all() -> Pipeline {
    let mut pipeline = redis::pipe();
    for script in SCRIPTS.iter() {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
    pipeline
}

struct Script {
    /// Its discriminant is the index in [`SCRIPTS`].
    #[cfg(test)]
    name: ScriptName,
    text: String,
    hash: String,
}

impl Script {
    fn new(name: ScriptName, text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        debug_assert!(!hash.is_empty(), "{name:?}");
        Self {
            #[cfg(test)]
            name,
            text,
            hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_is_at_the_index_of_its_name() {
        for (place, script) in SCRIPTS.iter().enumerate() {
            assert_eq!(script.name as usize, place);
        }
    }
}
