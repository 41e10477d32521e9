//! Forms for clients of 2025-06-18 (ELI-02).
//!
//! These clients support enums only as `enum` with `enumNames`, defaults only for booleans, and
//! no choice of several values. A field with such a choice is left out of the form, also if it is
//! required: no other field has an answer that the server would accept for it. The server gets an
//! answer without the field.

use bytes::Bytes;

use crate::raw::{self, Edits, Object, quoted};

/// Converts the form of `elicitation/create` for such a client; `None` if nothing has to change.
pub(super) fn older_form(params: &[u8]) -> Option<Bytes> {
    let object = Object::read(params)?;
    let schema = object.object("requestedSchema")?;
    let properties = schema.object("properties")?;
    let mut edits = Edits::default();
    let mut left_out = Vec::new();
    let mut kept = Vec::new();
    let mut changed = false;
    for (name, field) in &properties.members {
        match older_field(field.get()) {
            Field::Same => kept.push((&**name, field.get().to_owned())),
            Field::Changed(field) => {
                changed = true;
                kept.push((&**name, field));
            }
            Field::LeftOut => left_out.push(&**name),
        }
    }
    if !changed && left_out.is_empty() {
        return None;
    }
    let kept = raw::object(kept.iter().map(|(name, field)| (*name, field.as_str())));
    let required = without(&schema, &left_out);
    // Edits must be in ascending order of position.
    for (key, value) in &schema.members {
        match (&**key, &required) {
            ("properties", _) => edits.replace(params, value.get(), kept.clone()),
            ("required", Some(required)) => edits.replace(params, value.get(), required.clone()),
            _ => {}
        }
    }
    edits.apply(params)
}

/// The required fields without those left out, as JSON text; `None` if all stay.
fn without(schema: &Object<'_>, left_out: &[&str]) -> Option<String> {
    let required: Vec<String> = schema.read_as("required")?;
    let stays = |name: &&String| !left_out.contains(&name.as_str());
    let kept: Vec<String> = required.iter().filter(stays).map(|name| quoted(name)).collect();
    (kept.len() < required.len()).then(|| raw::array(kept.iter().map(String::as_str)))
}

enum Field {
    Same,
    Changed(String),
    LeftOut,
}

fn older_field(schema: &str) -> Field {
    let Some(schema) = Object::read(schema.as_bytes()) else { return Field::Same };
    let kind: Option<String> = schema.read_as("type");
    if kind.as_deref() == Some("array") {
        return Field::LeftOut;
    }
    let choices = schema.get("oneOf").and_then(choices);
    let keeps_default = kind.as_deref() == Some("boolean") || schema.get("default").is_none();
    if choices.is_none() && keeps_default {
        return Field::Same;
    }
    let mut members = Vec::new();
    for (key, value) in &schema.members {
        match (&**key, &choices) {
            ("default", _) if !keeps_default => {}
            ("oneOf", Some((values, names))) => {
                members.extend([("enum", values.as_str()), ("enumNames", names.as_str())]);
            }
            (key, _) => members.push((key, value.get())),
        }
    }
    if choices.is_some() && kind.is_none() {
        members.insert(0, ("type", "\"string\""));
    }
    Field::Changed(raw::object(members))
}

/// Values and names of `oneOf: [{const, title}, …]`, as the JSON text of two arrays.
fn choices(one_of: &str) -> Option<(String, String)> {
    let (mut values, mut names) = (Vec::new(), Vec::new());
    for choice in raw::elements(one_of)? {
        let choice = Object::read(choice.get().as_bytes())?;
        let value = choice.get("const")?;
        // Enums of this revision are strings; any other type stays unchanged.
        serde_json::from_str::<String>(value).ok()?;
        let name = choice.get("title").filter(|name| name.starts_with('"')).unwrap_or(value);
        values.push(value);
        names.push(name);
    }
    Some((raw::array(values), raw::array(names)))
}
