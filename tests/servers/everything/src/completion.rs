//! Completions of prompt arguments and template variables.

use rmcp::ErrorData;
use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, PromptReference, Reference,
    ResourceTemplateReference,
};

use crate::{prompts, resources};

/// The second argument has more matches than one answer may hold (CMP-02).
const MANY: usize = 200;

pub(crate) fn complete(request: &CompleteRequestParams) -> Result<CompleteResult, ErrorData> {
    let mut values = candidates(&request.r#ref, &request.argument.name)?;
    values.retain(|value| value.starts_with(&request.argument.value));
    let total = values.len();
    values.truncate(CompletionInfo::MAX_VALUES);
    let has_more = values.len() < total;
    let info = CompletionInfo::with_pagination(values, u32::try_from(total).ok(), has_more)
        .map_err(|message| ErrorData::internal_error(message, None))?;
    Ok(CompleteResult::new(info))
}

fn candidates(of: &Reference, argument: &str) -> Result<Vec<String>, ErrorData> {
    let name = match of {
        Reference::Prompt(PromptReference { name, .. }) => name.as_str(),
        Reference::Resource(ResourceTemplateReference { uri, .. }) => uri.as_str(),
        _ => return Err(ErrorData::invalid_params("unknown kind of reference", None)),
    };
    match (name, argument) {
        (prompts::WITH_ARGUMENTS, "arg1") => {
            Ok(["paris", "park", "party", "pebble", "quay"].map(String::from).to_vec())
        }
        (prompts::WITH_ARGUMENTS, "arg2") => {
            Ok((0..MANY).map(|number| format!("value-{number:03}")).collect())
        }
        (prompts::WITH_RESOURCE, "resourceUri") => {
            Ok(resources::list().into_iter().map(|resource| resource.uri).collect())
        }
        (resources::TEMPLATE, "id") => Ok(["1", "12", "123"].map(String::from).to_vec()),
        _ => {
            let message = format!("nothing to complete for argument `{argument}` of {name}");
            Err(ErrorData::invalid_params(message, None))
        }
    }
}
