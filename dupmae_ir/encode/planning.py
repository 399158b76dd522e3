"""What encoding a collection takes: bytes by part, and time and money by kind of machine.

Everything here is arithmetic on measured numbers; :mod:`dupmae_ir.encode.estimate` measures them on a sample.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dupmae_ir.errors import InputError, UsageError

MACHINES = Path(__file__).with_name("machines.toml")


@dataclass(frozen=True)
class Measured:
    """What the sample showed, per document unless stated otherwise."""

    rate: float  #: documents encoded a second by one core, or by the one device
    read_rate: float  #: documents that the driver reads, checks and digests a second
    build_seconds: float  #: to add a document to the index
    bytes: Mapping[str, float]  #: by part of the index
    postings: float
    dim: int | None
    words: float


@dataclass(frozen=True)
class Machine:
    """A kind of machine; the fields are explained in ``machines.toml``."""

    name: str
    devices: int
    times: float
    price: float
    host: float = 3000.0

    def __post_init__(self) -> None:
        if self.devices < 1 or self.times <= 0 or self.host <= 0 or self.price < 0:
            raise UsageError(f"machine {self.name!r}: devices, times and host must be positive, price at least 0")


@dataclass(frozen=True)
class Plan:
    """Encoding a collection on one machine."""

    machine: str
    documents_per_second: float
    encode_hours: float
    index_hours: float
    dollars: float
    bound_by: str  #: what else than the devices limits the rate: ``host``, ``reading`` or nothing


def read_machines(path: str | Path | None = None) -> list[Machine]:
    """The kinds of machines in a TOML file. Raises :class:`InputError` for one of another form."""
    where = Path(path) if path else MACHINES
    try:
        rows = tomllib.loads(where.read_text(encoding="utf-8"))["machine"]
        return [
            Machine(
                str(row["name"]),
                int(row["devices"]),
                float(row["times"]),
                float(row["price"]),
                float(row.get("host", Machine.host)),
            )
            for row in rows
        ]
    except OSError as e:
        raise InputError(f"{where}: cannot be read: {e.strerror or e}") from None
    except KeyError as e:
        raise InputError(f"{where}: no {e}; expected [[machine]] with name, devices, times and price") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, ValueError) as e:
        raise InputError(f"{where}: {e}; expected [[machine]] with name, devices, times and price") from None


def plan(measured: Measured, documents: float, machine: Machine) -> Plan:
    """Hours and dollars. The devices share the encoding; one process reads, and one builds the index afterwards."""
    device = measured.rate * machine.times
    limits = {"": device, "host": machine.host, "reading": measured.read_rate / machine.devices}
    bound_by = min(limits, key=lambda name: limits[name])
    rate = limits[bound_by] * machine.devices
    encode, build = documents / rate / 3600, documents * measured.build_seconds / 3600
    dollars = (encode + build) * machine.price
    return Plan(machine.name, rate, encode, build, dollars, bound_by)


def index_bytes(measured: Measured, documents: float) -> dict[str, float]:
    """Bytes by part of the index folder."""
    return {part: size * documents for part, size in measured.bytes.items()}


def engine_bytes(measured: Measured) -> dict[str, float]:
    """Bytes of a document by engine, ids and payloads left out. See docs/scale.md for where the terms come from."""
    dense, impacts = 4.0 * (measured.dim or 0), measured.postings
    own = dict(measured.bytes)
    return {
        "this package": sum(size for part, size in own.items() if part != "texts"),
        "this package, dense index sq8": sum(s for p, s in own.items() if p not in ("texts", "cls")) + dense / 4,
        "PostgreSQL + pgvector, no vector index": dense + 8 + 16 + 8 * impacts + 60,
        "PostgreSQL + pgvector, HNSW on the vector": 2 * (dense + 8) + 16 + 8 * impacts + 60 + 32 * 6,
        "Qdrant": dense + 128 + 16 * impacts,
        "Milvus": dense + 16 * impacts,
        "OpenSearch, Elasticsearch": dense + 128 + own.get("ot", 0.0),
        "Vespa": dense + 16 * impacts,
    }


def as_record(measured: Measured) -> dict[str, object]:
    """As JSON keeps it; ``Measured(**record)`` gives it back."""
    return {**asdict(measured), "bytes": dict(measured.bytes)}
