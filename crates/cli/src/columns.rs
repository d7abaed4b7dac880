//! Tables as `zpool` and `zfs` print them: a header, two blanks between columns, the last
//! column unpadded; or with `-H` no header and one tab between columns.

/// A column: its heading and how its cells are placed.
pub struct Column {
    /// Heading in capitals.
    pub heading: String,
    /// Numbers stand at the right.
    pub right: bool,
    /// Narrowest width in characters.
    pub least_width: usize,
}

impl Column {
    /// A column of text.
    pub fn left(heading: impl Into<String>) -> Self {
        Self {
            heading: heading.into(),
            right: false,
            least_width: 0,
        }
    }

    /// A column of numbers.
    pub fn right(heading: impl Into<String>) -> Self {
        Self {
            heading: heading.into(),
            right: true,
            least_width: 5,
        }
    }
}

/// Lays out `rows` below `columns`, each row with one cell a column. `scripted` is `-H`.
pub fn render(columns: &[Column], rows: &[Vec<String>], scripted: bool) -> String {
    let mut out = String::new();
    if scripted {
        for row in rows {
            out.push_str(&row.join("\t"));
            out.push('\n');
        }
        return out;
    }
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(index))
                .map(|cell| cell.chars().count());
            cells
                .chain([column.heading.chars().count(), column.least_width])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let headings: Vec<String> = columns
        .iter()
        .map(|column| column.heading.clone())
        .collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (index, (cell, column)) in row.iter().zip(columns).enumerate() {
            if index > 0 {
                line.push_str("  ");
            }
            let padding = widths[index].saturating_sub(cell.chars().count());
            let last = index + 1 == columns.len();
            if column.right {
                line.extend(std::iter::repeat_n(' ', padding));
            }
            line.push_str(cell);
            if !column.right && !last {
                line.extend(std::iter::repeat_n(' ', padding));
            }
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_like_zfs_list() {
        let columns = [
            Column::left("NAME"),
            Column::right("USED"),
            Column::left("MOUNTPOINT"),
        ];
        let rows = vec![
            vec!["tank".into(), "132K".into(), "/tank".into()],
            vec!["tank/longer".into(), "24K".into(), "-".into()],
        ];
        assert_eq!(
            render(&columns, &rows, false),
            "NAME          USED  MOUNTPOINT\ntank          132K  /tank\ntank/longer    24K  -\n"
        );
        assert_eq!(
            render(&columns, &rows, true),
            "tank\t132K\t/tank\ntank/longer\t24K\t-\n"
        );
    }
}
