//! The methods of MCP.

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// A method or notification name. Unknown ones pass through.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$doc])* $variant,)+
            /// Any other method, which the tenant's server accepts or rejects.
            Other(Box<str>),
        }

        impl Method {
            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)+
                    Self::Other(name) => name,
                }
            }
        }

        impl Method {
            /// The names of MCP's methods.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The position in [`Method::NAMES`], if it is one of MCP's.
            pub fn number(&self) -> Option<usize> {
                enum Number { $($variant,)+ }
                match self {
                    $(Self::$variant => Some(Number::$variant as usize),)+
                    Self::Other(_) => None,
                }
            }

            /// The name, if it is one of MCP's.
            pub fn known_name(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)+
                    Self::Other(_) => None,
                }
            }
        }

        impl From<&str> for Method {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)+
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

methods! {
    /// The handshake's request.
    Initialize = "initialize",
    /// The handshake's end.
    Initialized = "notifications/initialized",
    /// Checks that the peer answers.
    Ping = "ping",
    /// Cancels a request.
    Cancelled = "notifications/cancelled",
    /// The progress of a request.
    Progress = "notifications/progress",
    /// A log message of the server.
    LogMessage = "notifications/message",
    /// Sets the minimum level of log messages to the client.
    SetLevel = "logging/setLevel",
    /// Lists tools.
    ToolsList = "tools/list",
    /// Calls a tool.
    ToolsCall = "tools/call",
    /// The set of tools changed.
    ToolsListChanged = "notifications/tools/list_changed",
    /// Lists resources.
    ResourcesList = "resources/list",
    /// Lists resource templates.
    ResourceTemplatesList = "resources/templates/list",
    /// Reads a resource.
    ResourcesRead = "resources/read",
    /// Subscribes to a resource's updates.
    Subscribe = "resources/subscribe",
    /// Unsubscribes from a resource's updates.
    Unsubscribe = "resources/unsubscribe",
    /// The set of resources changed.
    ResourcesListChanged = "notifications/resources/list_changed",
    /// A resource changed.
    ResourceUpdated = "notifications/resources/updated",
    /// Lists prompts.
    PromptsList = "prompts/list",
    /// Gets a prompt.
    PromptsGet = "prompts/get",
    /// The set of prompts changed.
    PromptsListChanged = "notifications/prompts/list_changed",
    /// Completes an argument.
    Complete = "completion/complete",
    /// Requests the client's roots.
    RootsList = "roots/list",
    /// The client's roots changed.
    RootsListChanged = "notifications/roots/list_changed",
    /// Requests a sample of the client's model.
    CreateMessage = "sampling/createMessage",
    /// Requests input of the client's user.
    Elicit = "elicitation/create",
    /// A URL elicitation is complete.
    ElicitationComplete = "notifications/elicitation/complete",
}

impl Method {
    /// Whether requests of this method are idempotent. `false` for calls of tools, which depend on
    /// the tool.
    pub fn only_reads(&self) -> bool {
        match self {
            Self::Ping
            | Self::ToolsList
            | Self::PromptsList
            | Self::PromptsGet
            | Self::ResourcesList
            | Self::ResourceTemplatesList
            | Self::ResourcesRead
            | Self::Complete => true,
            // Each of these sets a state, which a repetition leaves unchanged.
            Self::SetLevel | Self::Subscribe | Self::Unsubscribe => true,
            _ => false,
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
