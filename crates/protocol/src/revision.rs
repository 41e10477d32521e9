//! The revisions of the specification, and the features of each.
//!
//! Only this file compares revisions. All other code calls methods of [`Revision`].

/// A revision of MCP that begins with `initialize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 2024-11-05: stdio and HTTP+SSE.
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP, batches, audio, annotations.
    V2025_03_26,
    /// 2025-06-18: no batches, elicitation, resource links, structured output.
    V2025_06_18,
    /// 2025-11-25: priming, polling, URL elicitation, tool use in sampling.
    V2025_11_25,
    /// DRAFT-2026-v1: mirrored request headers; no requests on standalone streams.
    Draft2026V1,
}

use Revision::*;

impl Revision {
    /// Every revision, oldest first.
    pub const ALL: [Self; 5] = [V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25, Draft2026V1];

    /// The names of all revisions, each at its number.
    pub const NAMES: [&'static str; 5] = [
        V2024_11_05.as_str(),
        V2025_03_26.as_str(),
        V2025_06_18.as_str(),
        V2025_11_25.as_str(),
        Draft2026V1.as_str(),
    ];

    /// The position in [`Revision::NAMES`].
    pub const fn number(self) -> usize {
        self as usize
    }

    /// The revision for a client that requests an unknown one (RPC-08).
    pub const NEWEST_STABLE: Self = V2025_11_25;

    /// The revision of a request without a version header and without a session (VER-02).
    pub const ASSUMED: Self = V2025_03_26;

    /// The revision's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            V2024_11_05 => "2024-11-05",
            V2025_03_26 => "2025-03-26",
            V2025_06_18 => "2025-06-18",
            V2025_11_25 => "2025-11-25",
            Draft2026V1 => "DRAFT-2026-v1",
        }
    }

    /// Parses the name of a revision.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == name)
    }

    /// The revision for a client that requested `name`: the same if it is known, otherwise the
    /// newest stable one (RPC-08).
    pub fn negotiate(name: &str) -> Self {
        Self::named(name).unwrap_or(Self::NEWEST_STABLE)
    }

    /// The revision to request from a tenant's server for a client of this revision. The draft is
    /// replaced by the newest stable one, which has the same payloads, since no server supports it.
    pub fn asked_of_servers(self) -> Self {
        self.min(Self::NEWEST_STABLE)
    }

    /// Whether a client may send a JSON-RPC batch (POST-05, BAT-06). 2024-11-05 does not specify
    /// it, so it is accepted.
    pub fn has_batches(self) -> bool {
        self <= V2025_03_26
    }

    /// Whether a stream begins with an event that has an id and no data (SSE-04). Clients of older
    /// revisions may try to parse the empty data.
    pub fn has_priming(self) -> bool {
        self >= V2025_11_25
    }

    /// Whether POSTs must mirror method and name in `Mcp-*` headers (HDR-01, HDR-21).
    pub fn has_mirrored_headers(self) -> bool {
        self >= Draft2026V1
    }

    /// Whether server requests may be sent on a standalone GET stream (GET-05, GET-06).
    pub fn has_standalone_requests(self) -> bool {
        self <= V2025_11_25
    }

    /// Whether `elicitation/create` exists (ELI-01).
    pub fn has_elicitation(self) -> bool {
        self >= V2025_06_18
    }

    /// Whether elicitation has modes (form, url), titled enums and defaults (ELI-02).
    pub fn has_elicitation_modes(self) -> bool {
        self >= V2025_11_25
    }

    /// Whether audio is a content type (TOOL-09).
    pub fn has_audio(self) -> bool {
        self >= V2025_03_26
    }

    /// Whether a resource link is a content type (TOOL-09).
    pub fn has_resource_links(self) -> bool {
        self >= V2025_06_18
    }

    /// Whether a sampling result's content may be an array, and sampling may use tools (SMP-02,
    /// SMP-04).
    pub fn has_sampling_tools(self) -> bool {
        self >= V2025_11_25
    }

    /// Whether clients may reopen a standalone stream only after it was aborted, as older
    /// TypeScript clients do.
    pub fn reopens_only_after_abort(self) -> bool {
        !self.has_priming()
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // holds: RPC-08, VER-13
    #[test]
    fn known_revisions_are_echoed_and_unknown_ones_get_the_newest_stable() {
        for revision in Revision::ALL {
            assert_eq!(Revision::NAMES[revision.number()], revision.as_str());
            assert_eq!(Revision::negotiate(revision.as_str()), revision);
        }
        for unknown in ["2026-07-28", "1999-01-01", "", "2025-11-25 "] {
            assert_eq!(Revision::negotiate(unknown), V2025_11_25);
        }
    }
}
