"""Index a folder of files, edit it, and encode only what changed. Run: python examples/keep_a_folder_in_sync.py"""

import tempfile
from pathlib import Path

from dupmae_ir import Searcher, build_index, update_index

NOTES = {
    "logs.md": "# Logs\n\nEvery night a timer renames app.log and deletes copies older than 14 days.\n",
    "backup.md": "# Backups\n\nRestore the newest full dump first, then apply the increments in order.\n",
    "office/doors.txt": "The side door opens with a badge until eight in the evening.\n",
}


def ask(index: Path, question: str, condition: str | None = None) -> None:
    searcher = Searcher.open(index)
    best = searcher.search(question, hits=1, filter=condition)[0]
    shown = searcher.describe(question, [best.docid])[0]
    print(f"{question}\n  {shown.document.metadata['path']}: {shown.snippet.text}")


def main() -> None:
    root = Path(tempfile.mkdtemp())
    docs = root / "docs"
    index = root / "index"
    for name, text in NOTES.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    build_index(docs, index)
    ask(index, "when are old log files removed?")
    (docs / "logs.md").write_text(
        "# Logs\n\nLogs are shipped to the archive; nothing is deleted here any more.\n"
    )
    (docs / "backup.md").unlink()
    print(update_index(index, docs, how="sync"))
    ask(index, "when are old log files removed?")
    ask(index, "how do I get in at night?", 'type = "text"')


if __name__ == "__main__":
    main()
