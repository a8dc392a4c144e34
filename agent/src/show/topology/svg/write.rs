//! Shapes as SVG text.

use std::fmt::Write as _;

use super::place::{Area, Shape, Size};

/// One look for light and dark pages: the picture brings its own background.
const STYLE: &str = "\
text { font-family: 'Inter', 'Segoe UI', 'DejaVu Sans', 'Helvetica Neue', sans-serif; fill: #1f2328; }
.title { font-size: 20px; font-weight: 600; }
.summary { font-size: 13px; fill: #57606a; }
.name { font-size: 12px; font-weight: 600; }
.legend { font-size: 12px; }
.axis { font-size: 11px; fill: #57606a; text-anchor: middle; }
.figure { font-size: 11px; text-anchor: middle; }
.figure.off { fill: #8c959f; }
.figure.dark { fill: #ffffff; }
.socket { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.5; }
.die { fill: none; stroke: #8c959f; stroke-dasharray: 5 3; }
.node { fill: #e8f1fb; stroke: #5b9bd5; stroke-width: 1.2; }
.l3 { fill: #fdf6e7; stroke: #d4a849; }
.core { fill: #ffffff; stroke: #b6bfc9; }
.cell.cpu { stroke: #d0d7de; }
.cell.isolated { stroke: #b3261e; stroke-width: 1.5; stroke-dasharray: 3 2; }
.cell.off { stroke: #d0d7de; }
.cell.distance { stroke: #ffffff; }
";

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(size: Size, description: &str) -> Self {
        let Size { wide, high } = size;
        let description = escaped(description);
        Self(format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" aria-label="{description}">
<style>
{STYLE}</style>
<defs><pattern id="offline" width="6" height="6" patternTransform="rotate(45)" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#f6f8fa"/><rect width="2" height="6" fill="#d0d7de"/></pattern></defs>
<rect width="{wide}" height="{high}" fill="#ffffff"/>
"##
        ))
    }

    pub(super) fn text(&mut self, (x, y): (u32, u32), class: &str, text: &str) {
        let text = escaped(text);
        // Writing to a String cannot fail, here and below.
        writeln!(
            self.0,
            r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#
        )
        .ok();
    }

    pub(super) fn area(&mut self, (left, top): (u32, u32), area: &Area) {
        for placed in &area.drawn {
            let (x, y) = (left + placed.x, top + placed.y);
            match &placed.shape {
                Shape::Frame { size, class } => {
                    let Size { wide, high } = size;
                    let round = if *class == "core" { 4 } else { 7 };
                    writeln!(
                        self.0,
                        r#"<rect class="{class}" x="{x}" y="{y}" width="{wide}" height="{high}" rx="{round}"/>"#
                    )
                    .ok();
                }
                Shape::Cell {
                    size: Size { wide, high },
                    class,
                    fill,
                    figure,
                    tip,
                } => {
                    let (middle, base) = (x + wide / 2, y + high / 2 + 4);
                    let (figure, tip) = (escaped(figure), escaped(tip));
                    let round = if class.starts_with("cpu") { 2 } else { 0 };
                    write!(
                        self.0,
                        r#"<g><rect class="cell {class}" x="{x}" y="{y}" width="{wide}" height="{high}" rx="{round}" fill="{fill}"/>"#
                    )
                    .ok();
                    if !figure.is_empty() {
                        write!(
                            self.0,
                            r#"<text class="figure {class}" x="{middle}" y="{base}">{figure}</text>"#
                        )
                        .ok();
                    }
                    if !tip.is_empty() {
                        write!(self.0, "<title>{tip}</title>").ok();
                    }
                    self.0 += "</g>\n";
                }
                Shape::Text { class, text } => self.text((x, y), class, text),
            }
        }
    }

    pub(super) fn end(mut self) -> String {
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
