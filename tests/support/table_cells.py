"""Find cells of the paper's tables by their titles."""

from experiments.paper import TABLES, Cell


def find_cell(table: str, column: str, group: str, title: str) -> Cell:
    found = [
        cell
        for cell in TABLES[table].cells()
        if (cell.column.title, cell.row.group, cell.row.title) == (column, group, title)
    ]
    assert len(found) == 1
    return found[0]
