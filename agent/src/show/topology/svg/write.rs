//! Shapes as SVG text.

use super::place::{Area, Shape, Size};
use crate::show::svg::{Svg, escaped};

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

/// What cells of CPUs that are off are filled with.
const DEFINITIONS: &str = "\
<defs><pattern id=\"offline\" width=\"6\" height=\"6\" patternTransform=\"rotate(45)\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" fill=\"#f6f8fa\"/><rect width=\"2\" height=\"6\" fill=\"#d0d7de\"/></pattern></defs>
";

/// A picture without anything in it.
pub(super) fn empty(size: Size, description: &str) -> Svg {
    Svg::new((size.wide, size.high), description, STYLE, DEFINITIONS)
}

/// Writes all that an area has.
pub(super) fn area(svg: &mut Svg, (left, top): (u32, u32), area: &Area) {
    for placed in &area.drawn {
        let (x, y) = (left + placed.x, top + placed.y);
        match &placed.shape {
            Shape::Frame { size, class } => {
                let Size { wide, high } = size;
                let round = if *class == "core" { 4 } else { 7 };
                svg.write(format_args!(r#"<rect class="{class}" x="{x}" y="{y}" width="{wide}" height="{high}" rx="{round}"/>
"#));
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
                svg.write(format_args!(r#"<g><rect class="cell {class}" x="{x}" y="{y}" width="{wide}" height="{high}" rx="{round}" fill="{fill}"/>"#));
                if !figure.is_empty() {
                    svg.write(format_args!(
                        r#"<text class="figure {class}" x="{middle}" y="{base}">{figure}</text>"#
                    ));
                }
                if !tip.is_empty() {
                    svg.write(format_args!("<title>{tip}</title>"));
                }
                svg.write(format_args!("</g>\n"));
            }
            Shape::Text { class, text } => svg.text((x, y), class, text),
        }
    }
}
