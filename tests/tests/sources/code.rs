//! The code of a Rust source: what is left without comments, literals and tests.

/// The source with blanks for comments, for strings and characters, for what only the documentation uses and, unless
/// `with_tests`, for tests. Every byte and every line stays in its place.
pub(crate) fn code(source: &str, with_tests: bool) -> String {
    let mut code = without_literals(source);
    for attribute in ["#[cfg(doc)]", "#[cfg(test)]"] {
        if attribute == "#[cfg(test)]" && with_tests {
            continue;
        }
        while let Some(start) = code.find(attribute) {
            let item = start..start + item_len(&code[start..]);
            let blanks = blanks(&code[item.clone()]);
            code.replace_range(item, &blanks);
        }
    }
    code
}

/// As many blanks as the text has bytes, and its ends of lines.
fn blanks(text: &str) -> String {
    let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
    text.bytes().map(blank).collect()
}

/// How long the item, the field or the block is that the text begins with, with its attributes.
fn item_len(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            // The end of what it is in: a last field.
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        let is_list = || text[at + 1..].trim_start().starts_with(';');
        if depth == 0 && (c == ';' || c == '}' && !is_list()) {
            return at + 1;
        }
    }
    text.len()
}

/// The source with blanks for comments, strings and characters.
fn without_literals(source: &str) -> String {
    let mut code = String::new();
    while let Some(rest) = source.get(code.len()..).filter(|rest| !rest.is_empty()) {
        let is_new_name = !code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        match literal_len(rest, is_new_name) {
            Some(len) => code.push_str(&blanks(&rest[..len])),
            None => code.extend(rest.chars().next()),
        }
    }
    code
}

/// How long the comment or literal is that the text begins with.
fn literal_len(text: &str, is_new_name: bool) -> Option<usize> {
    let raw = raw_quote(text).filter(|_| is_new_name);
    let end = if text.starts_with("//") {
        text.find('\n')
    } else if text.starts_with("/*") {
        text.find("*/").map(|at| at + 2)
    } else if let Some((opening, closing)) = raw {
        let end = text[opening..].find(&closing);
        end.map(|at| opening + at + closing.len())
    } else if let Some(inside) = text.strip_prefix('"') {
        until_quote(inside, '"').map(|at| at + 1)
    } else if let Some(inside) = text.strip_prefix('\'')
        && (inside.starts_with('\\') || inside.chars().nth(1) == Some('\''))
    {
        until_quote(inside, '\'').map(|at| at + 1)
    } else {
        return None;
    };
    Some(end.unwrap_or(text.len()))
}

/// How long what opens a raw string is, and what closes it.
fn raw_quote(text: &str) -> Option<(usize, String)> {
    let inside = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = inside.len() - inside.trim_start_matches('#').len();
    let opening = text.len() - inside[hashes..].strip_prefix('"')?.len();
    Some((opening, format!("\"{}", "#".repeat(hashes))))
}

/// How much of the text the quote ends, which no backslash escapes.
fn until_quote(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !is_escaped {
            return Some(at + 1);
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    None
}
