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

from dupmae_ir.index.postings.compiling import BLOCK, GROUP

ACCUMULATORS = 1 << 16
"""Length of an accumulator, whatever the window: no local row number is out of bounds, not even a damaged one."""
_GROUP = 64
_SAMPLED = 32
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
                sums, some, first, ranks, by_row, k, keys[q], counts[q], floors[q], scratch, histogram
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
            totals, sums, first, k, slacks[q], kept.rows[q], kept.sums[q], kept.totals[q], counts[q], floors[q]
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
                group, found, more = sums[start : start + np.uint64(_GROUP)], keys[count : count + _GROUP], np.uint64(0)
                for i in range(np.uint64(_GROUP)):
                    found[more] = (np.int64(group[i]) << 32) | (place - np.int64(i))
                    more += np.uint64(group[i] > low)  # branchless: which sums are above is unpredictable
                count += np.int64(more)
            else:
                for i in range(np.uint64(_GROUP)):
                    if sums[start + i] > low:
                        keys[count] = (np.int64(sums[start + i]) << 32) | (_LOW - ranks[_LOW - place + np.int64(i)])
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
def search_codes(files, window, documents, queries, codes, asked, allowed, windows, kept, counts, best):  # type: ignore[no-untyped-def]
    """Rows that can be among the k best of each query by an inner product, of which ``codes`` give bounds, plus
    ``asked.unit`` times the integer sum of impacts: in ``kept``, ``counts[q]`` of them, -1 if they did not fit.

    ``windows``: the first window and the one after the last. ``best`` (q, k) float32 is a heap of the highest lower
    bounds of scores,  A row is kept unless its upper bound is below the lowest of these, ``best[q, 0]``.
    """
    sums = np.zeros(ACCUMULATORS, np.int32)
    for w in range(windows[0], windows[1]):
        first = w * window
        some = min(window, documents - first)
        for q in range(len(counts)):
            if counts[q] < 0:
                continue
            if queries.starts[q] < queries.starts[q + 1]:
                _accumulate(files, w, queries, q, some, sums)
            counts[q] = _collect_bounds(sums[:some], first, codes, asked, q, allowed, kept, counts[q], best[q])
            sums[:some] = 0


@njit(nogil=True, cache=True)
def _collect_bounds(sums, first, codes, asked, q, allowed, kept, count, best):  # type: ignore[no-untyped-def]
    """Bound the rows of a window, block by block, each with more components as long as one of its rows can be kept."""
    weights, spreads, own, slack = asked.weights[q], asked.spreads[q], asked.own[q], asked.slacks[q]
    totals, bounds = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    room = kept.rows.shape[1]
    for start in range(0, len(sums), BLOCK):
        row, width = first + start, min(BLOCK, len(sums) - start)
        if not _first_totals(sums[start : start + width], asked.constants[q], asked.unit, allowed[row:], totals):
            continue
        group, alive = 0, True
        while alive and group < len(codes.head):
            _add_group(codes.head[group, row // BLOCK], weights[GROUP * group : GROUP * (group + 1)], totals)
            rests, most = codes.rests[group, row : row + BLOCK], own * codes.most_errors[row // BLOCK]
            alive = _bound(totals, rests, spreads[group], most, best[0], bounds)
            group += 1
        if not alive:
            continue
        for i in range(width):
            if bounds[i] < best[0]:
                continue
            error = own * codes.errors[row + i]
            upper = totals[i] + _product(codes.tail[row + i], weights[GROUP * group :]) + error
            if upper < best[0]:
                continue
            if count == room:
                count = _drop(kept, q, count, best[0])
                if count == room:
                    return -1
            kept.rows[q, count], kept.sums[q, count], kept.totals[q, count] = row + i, sums[start + i], upper
            count += 1
            _push(best, upper - np.float32(2) * (error + slack))
    return count


@njit(nogil=True, cache=True)
def _first_totals(sums, constant, unit, allowed, totals):  # type: ignore[no-untyped-def]
    """Scores before the inner product, -inf for rows that are not searched. Returns whether any row is."""
    for i in range(len(sums)):
        totals[i] = constant + np.float32(sums[i]) * unit
    totals[len(sums) :] = -np.inf
    if len(allowed) == 0:
        return True
    found = False
    for i in range(len(sums)):
        if allowed[i]:
            found = True
        else:
            totals[i] = -np.inf
    return found


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_group(block, w, totals):  # type: ignore[no-untyped-def]
    """Add to (64,) ``totals`` the products of the (32, 64) codes of a block, component by component, with ``w``.

    Exact integers times float32 weights: with weights in 8 bits as well, sums of 16-bit products took longer.
    """
    for j in range(0, GROUP, 4):
        one, two, three, four = block[j], block[j + 1], block[j + 2], block[j + 3]
        for i in range(BLOCK):
            totals[i] += (
                w[j] * np.float32(one[i])
                + w[j + 1] * np.float32(two[i])
                + w[j + 2] * np.float32(three[i])
                + w[j + 3] * np.float32(four[i])
            )


@njit(nogil=True, cache=True)
def _bound(totals, rests, spread, error, least, bounds):  # type: ignore[no-untyped-def]
    """Set ``bounds`` to the highest scores that the rows of a block can have; returns whether one reaches ``least``."""
    reached = False
    for i in range(BLOCK):
        bounds[i] = totals[i] + spread * rests[i] + error
        reached |= not bounds[i] < least
    return reached


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _product(code, w):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for j in range(len(code)):
        total += w[j] * np.float32(code[j])
    return total


@njit(nogil=True, cache=True)
def _drop(kept, q, count, least):  # type: ignore[no-untyped-def]
    """Remove the kept rows that have since been excluded; returns the number of the others."""
    rows, sums, totals, more = kept.rows[q], kept.sums[q], kept.totals[q], 0
    for i in range(count):
        if not totals[i] < least:
            rows[more], sums[more], totals[more] = rows[i], sums[i], totals[i]
            more += 1
    return more


@njit(nogil=True, cache=True)
def _push(heap, value):  # type: ignore[no-untyped-def]
    """Replace the lowest value of a heap, which is its first, unless the new one is lower."""
    place, size = 0, len(heap)
    if not value > heap[0]:
        return
    while True:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if child >= size or heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value


def _remove_old_caches() -> None:
    """Caches older than the classes of the arguments (:mod:`dupmae_ir.index.postings.compiling`) are compiled again.

    numba reads a cache before it compares the source's date, and fails if one of its classes has moved.
    """
    changed = max(path.stat().st_mtime for path in (Path(__file__), Path(__file__).with_name("compiling.py")))
    for path in Path(search.stats.cache_path).glob(f"{Path(__file__).stem}.*.nbi"):
        with contextlib.suppress(OSError):  # another process was faster, or the folder is not ours
            if path.stat().st_mtime < changed:
                path.unlink()


_remove_old_caches()
