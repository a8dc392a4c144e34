//! The screen as an SVG picture: what a terminal of [`WIDE`] by [`HIGH`] cells would show.

use std::fmt::Write as _;
use std::io;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use crate::show::top::draw;
use crate::show::top::model::Model;

/// Cells from left to right.
const WIDE: u16 = 120;
/// Cells from top to bottom.
const HIGH: u16 = 32;
/// A cell, pixels.
const CELL: (u32, u32) = (8, 18);
const MARGIN: u32 = 12;
/// Where letters stand in a cell, from its top.
const BASE: u32 = 13;

const BACKGROUND: &str = "#1d2021";
const FOREGROUND: &str = "#d5d8da";

/// The picture.
///
/// # Errors
/// None: memory is drawn on.
pub(crate) fn svg(model: &Model) -> io::Result<String> {
    // Its error type has no values.
    let Ok(mut terminal) = Terminal::new(TestBackend::new(WIDE, HIGH));
    let Ok(_) = terminal.draw(|frame| draw(frame, model));
    Ok(of_buffer(terminal.backend().buffer()))
}

fn of_buffer(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (wide, high) = (
        u32::from(area.width) * CELL.0 + 2 * MARGIN,
        u32::from(area.height) * CELL.1 + 2 * MARGIN,
    );
    let mut text = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" aria-label="plimsoll top">
<style>text {{ font: 13px 'DejaVu Sans Mono', 'Menlo', 'Consolas', monospace; white-space: pre; }}</style>
<rect width="{wide}" height="{high}" rx="6" fill="{BACKGROUND}"/>
"#
    );
    for row in 0..area.height {
        let mut column = 0;
        while column < area.width {
            let style = buffer[(column, row)].style();
            let begin = column;
            let mut run = String::new();
            while column < area.width && buffer[(column, row)].style() == style {
                run.push_str(buffer[(column, row)].symbol());
                column += 1;
            }
            write_run(&mut text, (begin, row), &run, style);
        }
    }
    text + "</svg>\n"
}

/// Cells of one look.
fn write_run(text: &mut String, (column, row): (u16, u16), run: &str, style: Style) {
    let is_reversed = style.add_modifier.contains(Modifier::REVERSED);
    if run.trim().is_empty() && !is_reversed {
        return;
    }
    let x = MARGIN + u32::from(column) * CELL.0;
    let y = MARGIN + u32::from(row) * CELL.1;
    let wide = u32::try_from(run.chars().count()).unwrap_or(0) * CELL.0;
    let mut fill = match style.fg {
        Some(Color::Red) => "#ff7b72",
        Some(Color::Yellow) => "#e3b341",
        Some(Color::Green) => "#7ee787",
        _ => FOREGROUND,
    };
    // Writing to a String cannot fail.
    if is_reversed {
        let high = CELL.1;
        writeln!(
            text,
            r#"<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{fill}"/>"#
        )
        .ok();
        fill = BACKGROUND;
    }
    let weight = if style.add_modifier.contains(Modifier::BOLD) {
        r#" font-weight="bold""#
    } else {
        ""
    };
    let faint = if style.add_modifier.contains(Modifier::DIM) {
        r#" opacity="0.6""#
    } else {
        ""
    };
    let y = y + BASE;
    for (column, part) in parts(run) {
        let x = x + column * CELL.0;
        let wide = u32::try_from(part.chars().count()).unwrap_or(0) * CELL.0;
        let part = crate::show::topology::svg::escaped(part);
        // Whatever font there is, the columns stay where they are.
        writeln!(
            text,
            r#"<text x="{x}" y="{y}" fill="{fill}"{weight}{faint} textLength="{wide}" lengthAdjust="spacingAndGlyphs">{part}</text>"#
        )
        .ok();
    }
}

/// What stands between two spaces or more, and in which column it begins: not every viewer keeps spaces.
fn parts(run: &str) -> impl Iterator<Item = (u32, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = &run[from..];
        let begin = from + (rest.len() - rest.trim_start_matches(' ').len());
        let part = run[begin..].split("  ").next()?.trim_end_matches(' ');
        from = begin + part.len();
        let column = run[..begin].chars().count();
        (!part.is_empty()).then(|| (u32::try_from(column).unwrap_or(0), part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_columns() {
        let parts: Vec<_> = parts("  a b   c ä  d  ").collect();
        assert_eq!(parts, [(2, "a b"), (8, "c ä"), (13, "d")]);
        assert_eq!(super::parts("   ").count(), 0);
    }
}
