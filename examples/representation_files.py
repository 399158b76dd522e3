"""Write the vectors and impacts of an index as JSON lines, which Pyserini and Anserini index.

python examples/representation_files.py INDEX FOLDER
python -m dupmae_ir.pyserini pyserini.index.lucene --collection JsonVectorCollection --input FOLDER/ot ...
"""

import sys
from pathlib import Path

from dupmae_ir.encode.pyserini_files import representation_lines
from dupmae_ir.index.index import Index
from dupmae_ir.io.publishing import atomic_write


def main(index: str, folder: str) -> None:
    opened = Index.open(index)
    for part in opened.meta["parts"]:
        path = Path(folder) / part / "part-000000.jsonl"
        with atomic_write(path) as f:
            f.writelines(f"{line}\n" for line in representation_lines(opened, part))
        print(f"{path}: {opened.documents:,} documents")


if __name__ == "__main__":
    main(*sys.argv[1:])
