//! Divides lists into pages.

use rmcp::ErrorData;

/// The page of `items` at `cursor`, and the cursor of the next page. A cursor names its list, so
/// that a cursor of another list is refused (PAG-02).
pub(crate) fn page<T>(
    list: &str,
    mut items: Vec<T>,
    cursor: Option<&str>,
    items_max: Option<usize>,
) -> Result<(Vec<T>, Option<String>), ErrorData> {
    let start = match cursor {
        None => 0,
        Some(cursor) => start_of(list, cursor)
            .filter(|start| *start < items.len())
            .ok_or_else(|| ErrorData::invalid_params("unknown cursor", None))?,
    };
    items.drain(..start);
    let Some(items_max) = items_max.filter(|max| *max < items.len()) else {
        return Ok((items, None));
    };
    items.truncate(items_max);
    Ok((items, Some(format!("{list}@{}", start + items_max))))
}

fn start_of(list: &str, cursor: &str) -> Option<usize> {
    cursor.strip_prefix(list)?.strip_prefix('@')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn pages_make_up_the_whole_list() {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let (items, next) = page("n", (0..7).collect(), cursor.as_deref(), Some(3)).unwrap();
            seen.extend(items);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn a_cursor_that_was_never_given_out_is_refused() {
        for cursor in ["bogus", "", "m@3", "n@", "n@7", "n@-1"] {
            let refused = page("n", (0..7).collect(), Some(cursor), Some(3)).unwrap_err();
            assert_eq!(refused.code.0, -32602, "{cursor}");
        }
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        assert_eq!(page("n", vec![1, 2, 3], None, Some(3)).unwrap(), (vec![1, 2, 3], None));
        assert_eq!(page("n", vec![1, 2, 3], None, None).unwrap(), (vec![1, 2, 3], None));
    }
}
