//! Where everything goes: sizes from the inside out.

/// Pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    pub(super) wide: u32,
    pub(super) high: u32,
}

/// Something at its place, from the upper left corner of the area around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) shape: Shape,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// A frame of a style.
    Frame { size: Size, class: &'static str },
    /// A cell of a style and a fill, with a figure in the middle and a tip.
    Cell {
        size: Size,
        class: &'static str,
        fill: &'static str,
        figure: String,
        tip: String,
    },
    /// A line of text of a style, from its base line.
    Text { class: &'static str, text: String },
}

/// Things at their places, and the size of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Area {
    pub(super) size: Size,
    pub(super) drawn: Vec<Placed>,
}

impl Placed {
    pub(super) fn text(x: u32, y: u32, class: &'static str, text: &str) -> Self {
        let text = text.to_owned();
        let shape = Shape::Text { class, text };
        Self { x, y, shape }
    }

    /// The name of a box, at its upper edge.
    pub(super) fn title(text: &str) -> Self {
        Self::text(super::PADDING, super::TITLE_HIGH - 4, "name", text)
    }

    pub(super) fn moved(mut self, x: u32, y: u32) -> Self {
        self.x += x;
        self.y += y;
        self
    }
}

impl Area {
    pub(super) fn cell(
        size: Size,
        fill: &'static str,
        class: &'static str,
        figure: String,
        tip: String,
    ) -> Self {
        let shape = Shape::Cell {
            size,
            class,
            fill,
            figure,
            tip,
        };
        Self {
            size,
            drawn: vec![Placed { x: 0, y: 0, shape }],
        }
    }

    /// Areas beside and below each other, in as many columns as give the whole about the shape of a screen (16 to 9).
    /// Rows that are full look better: a last row with gaps counts as a fifth more.
    pub(super) fn of(areas: Vec<Self>, gap: u32, padding: u32, title: u32) -> Self {
        let columns = (1..=areas.len()).min_by_key(|columns| {
            let Size { wide, high } = extent(&areas, *columns, gap).0;
            let side = u64::from((9 * wide).max(16 * high));
            let uneven = !areas.len().is_multiple_of(*columns);
            side * if uneven { 6 } else { 5 }
        });
        Self::in_columns(areas, columns.unwrap_or(1), gap, padding, title)
    }

    /// Areas in so many columns. Boxes of a column become as wide as its widest, boxes of a row as high as its highest.
    pub(super) fn in_columns(
        areas: Vec<Self>,
        columns: usize,
        gap: u32,
        padding: u32,
        title: u32,
    ) -> Self {
        let (size, widths, heights) = extent(&areas, columns, gap);
        let mut drawn = Vec::new();
        let top = if title == 0 {
            padding
        } else {
            padding / 2 + title
        };
        for (at, mut area) in areas.into_iter().enumerate() {
            let (column, row) = (at % columns, at / columns);
            let x = padding + widths[..column].iter().map(|wide| wide + gap).sum::<u32>();
            let y = top + heights[..row].iter().map(|high| high + gap).sum::<u32>();
            area.stretch(Size {
                wide: widths[column],
                high: heights[row],
            });
            drawn.extend(area.drawn.into_iter().map(|it| it.moved(x, y)));
        }
        Self {
            size: Size {
                wide: size.wide + 2 * padding,
                high: top + size.high + padding,
            },
            drawn,
        }
    }

    /// Gives the outer frame another size. Cores stay as large as their threads are many.
    fn stretch(&mut self, to: Size) {
        if let Some(Placed {
            shape: Shape::Frame { size, class },
            ..
        }) = self.drawn.first_mut()
            && *class != "core"
        {
            *size = to;
        }
    }

    /// The area with a frame around it.
    pub(super) fn framed(mut self, class: &'static str) -> Self {
        let size = self.size;
        let shape = Shape::Frame { size, class };
        self.drawn.insert(0, Placed { x: 0, y: 0, shape });
        self
    }
}

/// The size of areas in so many columns, and the columns' widths and rows' heights.
fn extent(areas: &[Area], columns: usize, gap: u32) -> (Size, Vec<u32>, Vec<u32>) {
    let mut widths = vec![0; columns.min(areas.len())];
    let mut heights = vec![0; areas.len().div_ceil(columns)];
    for (at, area) in areas.iter().enumerate() {
        let wide = &mut widths[at % columns];
        *wide = area.size.wide.max(*wide);
        let high = &mut heights[at / columns];
        *high = area.size.high.max(*high);
    }
    let sum = |sizes: &[u32]| {
        let gaps = u32::try_from(sizes.len()).unwrap_or(0).saturating_sub(1);
        sizes.iter().sum::<u32>() + gaps * gap
    };
    let size = Size {
        wide: sum(&widths),
        high: sum(&heights),
    };
    (size, widths, heights)
}
