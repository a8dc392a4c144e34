//! Pictures as SVG text: what all of them are written with. All lengths are pixels.

use std::fmt::{Arguments, Write as _};

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Svg(String);

impl Svg {
    /// On a white ground, so that it is the same on light and dark pages. `style` is CSS, and `definitions` are
    /// elements that others refer to; both end with a line end, or are empty.
    pub(crate) fn new<N: Into<u64>>(
        (wide, high): (N, N),
        description: &str,
        style: &str,
        definitions: &str,
    ) -> Self {
        let (wide, high) = (wide.into(), high.into());
        let description = escaped(description);
        Self(format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" aria-label="{description}">
<style>
{style}</style>
{definitions}<rect width="{wide}" height="{high}" fill="#ffffff"/>
"##
        ))
    }

    /// An element, or a part of one. The writer has escaped what others chose.
    pub(crate) fn write(&mut self, text: Arguments<'_>) {
        // Writing to a String cannot fail.
        self.0.write_fmt(text).ok();
    }

    /// A line of text, from its base line.
    pub(crate) fn text<N: Into<u64>>(&mut self, (x, y): (N, N), class: &str, text: &str) {
        let (x, y, text) = (x.into(), y.into(), escaped(text));
        self.write(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>\n"
        ));
    }

    /// A rectangle without round corners.
    pub(crate) fn rect(&mut self, class: &str, (x, y): (u64, u64), (wide, high): (u64, u64)) {
        self.write(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\"/>\n"
        ));
    }

    pub(crate) fn end(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }
}

/// Text as XML has it.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            // Not allowed in XML at all.
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
