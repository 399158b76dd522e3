"""Compiled loops over impacts and codes. Needs numba, which is optional; import it inside functions only.

A window is a run of rows whose postings are contiguous, sorted by term and then by row. An accumulator contains one
query's sums over one window and fits a processor's cache, which makes adding to it fast.

Within a window every posting of the query is added. Early termination (MaxScore: terms of low bounds only for rows
that can still reach the top k) was simulated with the best cut-off that hindsight could choose, at ten hits of a
million documents: it saves less than a tenth, because the skipped lists are those of common terms, whose columns are
cheap.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from dupmae_ir.index.postings.code_products import block_products, near_rows, row_product
from dupmae_ir.index.postings.compiling import BLOCK, CHUNK

ACCUMULATORS = 1 << 16
"""Length of an accumulator, whatever the window: no local row number is out of bounds, not even a damaged one."""
_GROUP = 64
_SAMPLED = 32
_HALF = np.float32(16)  # what one unit of the high half of a code counts
_TOGETHER = 4096
_BITS = 10
_BINS = 1 << _BITS
_LOW = (1 << 32) - 1


_LOWEST = -3.0e38
"""Below every total of a row that is searched; the totals of other rows are -inf."""


@njit(nogil=True, cache=True)
def search(files, window, documents, queries, ranks, allowed, k, keys, counts):  # type: ignore[no-untyped-def]
    """The best rows of several queries, unsorted: ``counts[q]`` keys in ``keys[q]``, the ``k`` best among them.

    ``allowed`` (documents,) bool: the rows to search; all where it is empty.

    ``ranks`` (documents,) int64 decides ties; the row does where it is empty. A key is
    ``score << 32 | (2**32 - 1 - position in the order of ties)``: higher is better. ``keys`` (q, n) has room for at
    least ``k`` + :data:`~dupmae_ir.index.postings.searcher.SLACK` of each.
    """
    floors = np.zeros(len(queries.starts) - 1, np.int64)
    sums = np.zeros(ACCUMULATORS, np.int32)
    scratch, histogram = np.zeros(ACCUMULATORS // _SAMPLED, np.int64), np.zeros(_BINS, np.int64)
    by_row, masked = len(ranks) == 0, len(allowed) > 0
    for w in range(len(files.starts) - 1):
        first = w * window
        some = min(window, documents - first)
        if masked and not allowed[first : first + some].any():
            continue
        for q in range(len(floors)):
            bound = np.int64(0)
            for j in range(queries.starts[q], queries.starts[q + 1]):
                bound += np.int64(queries.weights[j]) * files.maxima[w, queries.terms[j]]
            if bound <= floors[q]:
                continue
            _accumulate(files, w, queries, q, some, sums)
            if masked:
                _mask(sums, allowed[first : first + some])
            counts[q], floors[q] = _collect(
                sums,
                some,
                first,
                ranks,
                by_row,
                k,
                keys[q],
                counts[q],
                floors[q],
                scratch,
                histogram,
            )


@njit(nogil=True, cache=True)
def search_sum(w, files, window, documents, queries, unit, others, k, slacks, kept, counts, floors):  # type: ignore[no-untyped-def]
    """One window of a search for the best sums of impacts and another score.

    ``others`` (q, n) float32: the other score of the window's n rows, -inf for rows that are not searched, modified in
    place to the sum with impacts times ``unit``. ``slacks`` (q,): the largest error of such a sum. Rows that can be
    among the ``k`` best are added to ``kept``, ``counts[q]`` of them; ``floors[q]`` is a total that rows must reach. A
    count of -1 means that ``kept`` was too small.
    """
    first = w * window
    some = min(window, documents - first)
    sums = np.zeros(ACCUMULATORS, np.int32)
    factor = np.float32(unit)
    for q in range(len(queries.starts) - 1):
        if counts[q] < 0:
            continue
        _accumulate(files, w, queries, q, some, sums)
        totals = others[q, :some]
        for i in range(some):
            totals[i] += np.float32(sums[i]) * factor
        if counts[q] == 0:
            floors[q] = max(_LOWEST, _first_total(totals, k) - 2 * slacks[q])
        counts[q], floors[q] = _collect_totals(
            totals,
            sums,
            first,
            k,
            slacks[q],
            kept.rows[q],
            kept.sums[q],
            kept.totals[q],
            counts[q],
            floors[q],
        )
        sums[:some] = 0


@njit(nogil=True, cache=True)
def _mask(sums, allowed):  # type: ignore[no-untyped-def]
    """Make the sums of other rows 0, as if they shared no term with the query."""
    for i in range(len(allowed)):
        sums[i] *= np.int32(allowed[i])


@njit(nogil=True, cache=True)
def _first_total(totals, k):  # type: ignore[no-untyped-def]
    """A value that at least ``k`` of the totals reach, estimated from a sample and then counted; or -inf."""
    sample = totals[::_SAMPLED].copy()
    wanted = (k * 5 // 4) // _SAMPLED + 3
    if 4 * wanted > len(sample):
        return -np.inf
    guess, above = np.partition(sample, len(sample) - wanted)[len(sample) - wanted], 0
    for i in range(len(totals)):
        above += totals[i] >= guess
    return np.float64(guess) if above >= k else -np.inf


@njit(nogil=True, cache=True)
def _collect_totals(totals, sums, first, k, slack, rows, own, kept, count, floor):  # type: ignore[no-untyped-def]
    """Keep totals of at least ``floor``. Returns their number, -1 if they do not fit, and the new floor."""
    low, some = np.float32(floor), len(totals)
    for start in range(0, some, _GROUP):
        stop = min(start + _GROUP, some)
        above = np.int32(0)
        for i in range(start, stop):
            above += np.int32(totals[i] >= low)
        if above == 0:
            continue
        if count + _GROUP > len(kept):
            kth = np.partition(kept[:count].copy(), count - k)[count - k]
            floor = max(floor, np.float64(kth) - 2 * slack)
            low, more = np.float32(floor), 0
            for i in range(count):
                if kept[i] >= low:
                    rows[more], own[more], kept[more] = rows[i], own[i], kept[i]
                    more += 1
            count = more
            if count + _GROUP > len(kept):
                return -1, floor
        for i in range(start, stop):
            if totals[i] >= low:
                rows[count], own[count], kept[count] = first + i, sums[i], totals[i]
                count += 1
    return count, floor


@njit(nogil=True, cache=True)
def _accumulate(files, w, queries, q, some, sums):  # type: ignore[no-untyped-def]
    """Add the impacts of query ``q`` in window ``w``, which has ``some`` rows, to ``sums``."""
    begin, end = files.starts[w], files.starts[w + 1]
    window_rows, window_impacts = files.rows[begin:end], files.impacts[begin:end]
    columns, pointers = files.columns[w], files.pointers[w]
    dense, column_start = files.dense, files.column_starts[w]
    terms, weights = queries.terms, queries.weights
    waiting = np.int64(-1)  # a column that is added together with the next one
    for j in range(queries.starts[q], queries.starts[q + 1]):
        term, weight = terms[j], weights[j]
        if columns[term] == 0:
            of, to = np.int64(pointers[term]), np.int64(pointers[term + 1])
            _add_postings(window_rows[of:to], window_impacts[of:to], weight, sums)
        elif waiting < 0:
            waiting = np.int64(j)
        else:
            one = _column(dense, column_start, columns[terms[waiting]], some)
            two = _column(dense, column_start, columns[term], some)
            _add_columns(one, weights[waiting], two, weight, sums)
            waiting = np.int64(-1)
    if waiting >= 0:
        one = _column(dense, column_start, columns[terms[waiting]], some)
        _add_columns(one, weights[waiting], one, np.int32(0), sums)


@njit(nogil=True, cache=True)
def _add_postings(rows, impacts, weight, sums):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        sums[rows[i]] += weight * np.int32(impacts[i])


@njit(nogil=True, cache=True)
def _column(dense, start, number, some):  # type: ignore[no-untyped-def]
    of = start + (np.int64(number) - 1) * some
    return dense[of : of + some]


@njit(nogil=True, cache=True)
def _add_columns(one, one_weight, two, two_weight, sums):  # type: ignore[no-untyped-def]
    for i in range(min(len(one), len(two))):
        sums[i] += np.int32(one_weight * np.int32(one[i]) + two_weight * np.int32(two[i]))


@njit(nogil=True, cache=True)
def _collect(sums, some, first, ranks, by_row, k, keys, count, floor, scratch, histogram):  # type: ignore[no-untyped-def]
    """Turn sums above ``floor`` into keys and reset all sums. Returns the number of keys and the new floor."""
    if count == 0:
        floor = _first_floor(sums, some, k, scratch, histogram)
    low = np.int32(floor)
    for start in range(np.uint64(0), np.uint64(some), np.uint64(_GROUP)):
        signs = np.int32(0)  # negative if any sum is above the floor: cheaper than their maximum
        for i in range(np.uint64(_GROUP)):
            signs |= np.int32(low - sums[start + i])
        if signs < 0:
            if count + _GROUP > len(keys):
                count, floor = _keep_best(keys[:count], k, len(keys) - _GROUP, by_row, histogram)
                low = np.int32(floor)
            place = _LOW - first - np.int64(start)
            if by_row:
                group, found, more = (
                    sums[start : start + np.uint64(_GROUP)],
                    keys[count : count + _GROUP],
                    np.uint64(0),
                )
                for i in range(np.uint64(_GROUP)):
                    found[more] = (np.int64(group[i]) << 32) | (place - np.int64(i))
                    more += np.uint64(
                        group[i] > low
                    )  # branchless: which sums are above is unpredictable
                count += np.int64(more)
            else:
                for i in range(np.uint64(_GROUP)):
                    if sums[start + i] > low:
                        keys[count] = (np.int64(sums[start + i]) << 32) | (
                            _LOW - ranks[_LOW - place + np.int64(i)]
                        )
                        count += 1
        for i in range(np.uint64(_GROUP)):
            sums[start + i] = 0
    return count, floor


@njit(nogil=True, cache=True)
def _first_floor(sums, some, k, scratch, histogram):  # type: ignore[no-untyped-def]
    """A score that at least ``k`` of the sums exceed, estimated from a sample and then counted; or 0."""
    sample = some // _SAMPLED
    wanted = (k * 5 // 4) // _SAMPLED + 3
    if 4 * wanted > sample:
        return np.int64(0)
    for i in range(sample):
        scratch[i] = np.int64(sums[i * _SAMPLED]) << 32
    guess, _ = _kth_score(scratch[:sample], wanted, histogram)
    low, above = np.int32(guess), np.int32(0)
    for i in range(np.uint64(some)):
        above += np.int32(sums[i] > low)
    return guess if above >= k else np.int64(0)


@njit(nogil=True, cache=True)
def _keep_best(keys, k, most, by_row, histogram):  # type: ignore[no-untyped-def]
    """Move the ``k`` best keys to the front, with at most ``most`` in all where some tie. Returns their number and the
    score that a later row must exceed."""
    score, equal = _kth_score(keys, k, histogram)
    kept = 0
    if by_row:  # keys are in row order: of those that tie, the first are the best
        for i in range(len(keys)):
            found = keys[i] >> 32
            if found > score or (found == score and equal > 0):
                equal -= found == score
                keys[kept] = keys[i]
                kept += 1
        return kept, score
    for i in range(len(keys)):
        keys[kept], better = keys[i], keys[i] >> 32 >= score
        kept += better
    if kept > k + (most - k) // 2:
        keys[:kept].sort()
        for i in range(k):
            keys[i] = keys[kept - k + i]
        kept = k
    return kept, score - 1  # a later row that ties may come first


@njit(nogil=True, cache=True)
def _kth_score(keys, k, histogram):  # type: ignore[no-untyped-def]
    """The ``k``-th highest score, and how many of the ``k`` best have it: ten bits at a time from the top."""
    best = np.int64(0)
    for i in range(len(keys)):
        best = max(best, keys[i])
    best >>= 32
    shift = 0
    while best >> shift >= _BINS:
        shift += 1
    above, prefix, need = shift + _BITS, np.int64(0), k
    while True:
        histogram[:] = 0
        mask = (1 << (above - shift)) - 1
        for i in range(len(keys)):
            score = keys[i] >> 32
            if score >> above == prefix:
                histogram[(score >> shift) & mask] += 1
        place = mask
        while histogram[place] < need:
            need -= histogram[place]
            place -= 1
        prefix = (prefix << (above - shift)) | place
        if shift == 0:
            return prefix, need
        above = shift
        shift = max(0, shift - _BITS)


@njit(nogil=True, cache=True)
def inner_products(indptr, terms, impacts, rows, table, out):  # type: ignore[no-untyped-def]
    """``out[i]`` = sum over the terms of ``rows[i]`` of impact times ``table[term]``; int64 throughout."""
    for i in range(len(rows)):
        of, to = indptr[rows[i]], indptr[rows[i] + 1]
        some_terms, some_impacts = terms[of:to], impacts[of:to]
        total = np.int64(0)
        for j in range(len(some_terms)):
            total += table[some_terms[j]] * np.int64(some_impacts[j])
        out[i] = total


@njit(nogil=True, cache=True)
def search_codes(  # type: ignore[no-untyped-def]
    files, window, documents, queries, q, codes, asked, allowed, windows, k, least, kept
):
    """Rows that can be among the ``k`` best of query q by an inner product, of which ``codes`` give bounds, plus
    ``asked.unit`` times the integer sum of impacts: returns how many are ``kept``, -1 if they did not fit.

    ``windows``: the first window and the one after the last. A row is kept unless its upper bound is below ``least``,
    or below the k-th highest of the lower bounds of the rows kept so far.
    """
    sums, near, count, mark = (
        np.zeros(ACCUMULATORS, np.int32),
        np.empty(ACCUMULATORS, np.int32),
        0,
        k,
    )
    totals, bounds = np.empty(ACCUMULATORS, np.float32), np.empty(ACCUMULATORS, np.float32)
    for w in range(windows[0], windows[1]):
        first = w * window
        some = min(window, documents - first)
        if files is not None:
            _accumulate(files, w, queries, q, some, sums)
        _first_bounds(sums, some, first, codes, asked, totals, bounds)
        for i in range(min(some, len(allowed) - first)):
            if not allowed[first + i]:
                bounds[i] = totals[i] = -np.inf
        floor = (
            np.float32(_first_total(totals[:some], 4 * k))
            if least <= _LOWEST
            else np.float32(-np.inf)
        )
        for start in range(-_TOGETHER if floor > _LOWEST else 0, some, _TOGETHER):
            if start < 0:  # rows of high totals first, which exclude most of the others
                left = _near(totals, 0, some, floor, near)
                bounds[near[:left]] = -np.inf
            else:
                left = _near(bounds, start, min(start + _TOGETHER, some), least, near)
            count, mark, least = _keep(
                near[:left], sums, first, codes, asked, totals, k, least, mark, kept, count
            )
            if count < 0:
                return -1
        sums[:some] = 0
    return count


@njit(nogil=True, cache=True)
def _first_bounds(sums, some, first, codes, asked, totals, bounds):  # type: ignore[no-untyped-def]
    """Set totals of impacts and the first chunk, and upper bounds, of the rows of a window."""
    products = np.empty(BLOCK, np.int32)
    for start in range(0, some, BLOCK):
        row, here = first + start, slice(start, start + BLOCK)
        block_products(codes.head[row // BLOCK], asked.high, asked.low, products)
        _bound(
            sums[here],
            products,
            asked,
            codes.errors[0, row:],
            codes.rests[row:],
            totals[here],
            bounds[here],
        )
    totals[some : some + BLOCK] = bounds[some : some + BLOCK] = -np.inf


@njit(nogil=True, cache=True)
def _bound(sums, products, asked, errors, rests, totals, bounds):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        product = np.float32(np.int32(2 * products[i] - asked.offsets[0])) * (_HALF * asked.scale)
        totals[i] = asked.constant + np.float32(sums[i]) * asked.unit + product
        bounds[i] = totals[i] + asked.lengths[0] * errors[i] + asked.spread * rests[i]


@njit(nogil=True, cache=True)
def _near(bounds, start, stop, least, near):  # type: ignore[no-untyped-def]
    """Number the rows whose bound is not below ``least``; returns how many."""
    more = 0
    for block in range(start, stop, BLOCK):
        bits = near_rows(bounds, block, least)
        while bits:
            near[more] = block + trailing_zeros(bits)
            bits &= bits - np.uint64(1)
            more += 1
    return more


@njit(nogil=True, cache=True)
def _keep(near, sums, first, codes, asked, totals, k, least, mark, kept, count):  # type: ignore[no-untyped-def]
    """Keep near rows, unless the high halves of all chunks or complete codes exclude them. Returns the number of kept
    rows, -1 if they do not fit, and the new bound that rows must reach."""
    for stage in range(1, 3):
        near = near[: _narrowed(near, stage, first, codes, asked, totals, least)]
    for i in near:
        error = asked.lengths[2] * codes.errors[2, first + i]
        upper = totals[i] + error
        if upper < least:
            continue
        kept.rows[count], kept.sums[count], kept.totals[count] = first + i, sums[i], upper
        kept.lowers[count] = upper - np.float32(2) * (error + asked.slack)
        count += 1
        if count >= mark or count == len(kept.rows):
            count, least = _kth_lower(kept, count, k, least)
            mark = count + max(k // 2, count // 4, 16)
            if count == len(kept.rows):
                return -1, mark, least
    return count, mark, least


@njit(nogil=True, cache=True)
def _narrowed(near, stage, first, codes, asked, totals, least):  # type: ignore[no-untyped-def]
    """Add what a stage reads to the totals of near rows; returns how many, moved to the front, it does not exclude."""
    part, scale, skipped = (
        (codes.high, _HALF * asked.scale, CHUNK) if stage == 1 else (codes.low, asked.scale, 0)
    )
    flat, width, high, low, more = part.reshape(-1), part.shape[1], asked.high, asked.low, 0
    errors, length, offset = codes.errors[stage, first:], asked.lengths[stage], asked.offsets[stage]
    for i in near:
        product = row_product(flat, (first + i) * width, high, low, skipped, width // (CHUNK // 2))
        totals[i] += np.float32(np.int32(2 * product - offset)) * scale
        near[more] = i
        more += not totals[i] + length * errors[i] < least
    return more


@njit(nogil=True, cache=True)
def _kth_lower(kept, count, k, least):  # type: ignore[no-untyped-def]
    """Drop the kept rows that others exclude. Returns the number of the others, and the bound that rows must reach."""
    if count >= k:
        least = max(least, np.partition(kept.lowers[:count].copy(), count - k)[count - k])
    rows, sums, totals, lowers, more = kept.rows, kept.sums, kept.totals, kept.lowers, 0
    for i in range(count):
        if not totals[i] < least:
            rows[more], sums[more], totals[more], lowers[more] = (
                rows[i],
                sums[i],
                totals[i],
                lowers[i],
            )
            more += 1
    return more, least


def _remove_old_caches() -> None:
    """Caches older than the classes of the arguments (:mod:`dupmae_ir.index.postings.compiling`) are compiled again.

    numba reads a cache before it compares the source's date, and fails if one of its classes has moved.
    """
    changed = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    for path in Path(search.stats.cache_path).glob(f"{Path(__file__).stem}.*.nbi"):
        with contextlib.suppress(OSError):  # another process was faster, or the folder is not ours
            if path.stat().st_mtime < changed:
                path.unlink()


_remove_old_caches()
