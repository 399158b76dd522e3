"""Compiled loops over impacts and codes. Needs numba, which is optional; import it inside functions only.

A window is a run of rows whose postings are contiguous, sorted by term and then by row. An accumulator contains one
query's sums over one window and fits a processor's cache, which makes adding to it fast.

Within a window every posting of the query is added. Early termination (MaxScore: terms of low bounds only for rows
that can still reach the top k) was simulated with the best cut-off that hindsight could choose, at ten hits of a
million documents: it saves less than a tenth, because the skipped lists belong to common terms, whose columns are
cheap.

The loops check no bounds. What they read was compared with the sizes in the records when the files were opened, and
what they write has the length that the comments here name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from dupmae_ir.compiled import compiled
from dupmae_ir.index.postings.code_products import block_products, near_rows, row_product
from dupmae_ir.index.postings.compiling import BLOCK, CHUNK

ACCUMULATORS = 1 << 16
"""Length of an accumulator, whatever the window: no local row number is out of bounds, not even a damaged one."""
_GROUP = 64
"""Sums that are compared with the floor at once. It divides :data:`ACCUMULATORS`, so a group may be read completely
even if the window ends within it."""
_SAMPLING_STEP = 32
"""One sum in this many is sampled to estimate the first floor."""
_HIGH_HALF_UNIT = np.float32(16)
"""What one unit of the high half of a code counts."""
_ROWS_PER_STEP = 4096
"""Rows whose bounds are compared with one threshold; the threshold rises between steps."""
_DIGIT_BITS = 10
"""Bits of a score that one pass of :func:`_kth_score` decides."""
_BINS = 1 << _DIGIT_BITS
_LOW_WORD = (1 << 32) - 1
"""The bits of a key below the score."""
_MIN_TOTAL = -3.0e38
"""Below every total of a row that is searched; the totals of other rows are -inf."""


@compiled
def search(files, window, documents, queries, ranks, allowed, k, keys, counts):  # type: ignore[no-untyped-def]
    """The best rows of several queries, unsorted: ``counts[q]`` keys in ``keys[q]``, the ``k`` best among them.

    ``allowed`` (documents,) bool: the rows to search; empty to search all.

    ``ranks`` (documents,) int64 decides ties; if it is empty, the row does. A key is
    ``score << 32 | (2**32 - 1 - position in the order of ties)``: higher is better. ``keys`` (q, n) has room for at
    least ``k`` + :data:`~dupmae_ir.index.postings.searcher.SLACK` of each.
    """
    floors = np.zeros(
        len(queries.starts) - 1, np.int64
    )  # the score that a row must exceed, by query
    sums = np.zeros(ACCUMULATORS, np.int32)
    scratch = np.zeros(ACCUMULATORS // _SAMPLING_STEP, np.int64)
    histogram = np.zeros(_BINS, np.int64)
    by_row = len(ranks) == 0
    masked = len(allowed) > 0
    # Queries inside windows: a window is read from memory once for all of them.
    for w in range(len(files.starts) - 1):
        first = w * window
        row_count = min(window, documents - first)
        if masked and not allowed[first : first + row_count].any():
            continue
        for q in range(len(floors)):
            bound = np.int64(0)  # no row of the window scores more
            for j in range(queries.starts[q], queries.starts[q + 1]):
                bound += np.int64(queries.weights[j]) * files.maxima[w, queries.terms[j]]
            if bound <= floors[q]:
                continue
            _accumulate(files, w, queries, q, row_count, sums)
            if masked:
                _mask(sums, allowed[first : first + row_count])
            counts[q], floors[q] = _collect(
                sums,
                row_count,
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


@compiled
def search_sum(w, files, window, documents, queries, unit, others, k, slacks, kept, counts, floors):  # type: ignore[no-untyped-def]
    """One window of a search for the best sums of impacts and another score.

    ``others`` (q, n) float32: the other score of the window's n rows, -inf for rows that are not searched, modified in
    place to the sum with impacts times ``unit``. ``slacks`` (q,): the largest error of such a sum. Rows that can be
    among the ``k`` best are added to ``kept``, ``counts[q]`` of them; ``floors[q]`` is a total that rows must reach. A
    count of -1 means that ``kept`` was too small.
    """
    first = w * window
    row_count = min(window, documents - first)
    sums = np.zeros(ACCUMULATORS, np.int32)
    factor = np.float32(unit)
    for q in range(len(queries.starts) - 1):
        if counts[q] < 0:
            continue
        _accumulate(files, w, queries, q, row_count, sums)
        totals = others[q, :row_count]
        for i in range(row_count):
            totals[i] += np.float32(sums[i]) * factor
        if counts[q] == 0:
            # Twice: the k-th total may be too high by the slack, and the total of a better row too low by it.
            floors[q] = max(_MIN_TOTAL, _first_total(totals, k) - 2 * slacks[q])
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
        sums[:row_count] = 0


@compiled
def _mask(sums, allowed):  # type: ignore[no-untyped-def]
    """Make the sums of other rows 0, as if they shared no term with the query."""
    for i in range(len(allowed)):
        sums[i] *= np.int32(allowed[i])


@compiled
def _first_total(totals, k):  # type: ignore[no-untyped-def]
    """A value that at least ``k`` of the totals reach, estimated from a sample and then counted; or -inf."""
    sample = totals[::_SAMPLING_STEP].copy()
    # A quarter more than k, and three of the sample: chance seldom leaves fewer than k above.
    rank = (k * 5 // 4) // _SAMPLING_STEP + 3
    if 4 * rank > len(sample):
        return -np.inf
    guess = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    above = 0
    for i in range(len(totals)):
        above += totals[i] >= guess
    return np.float64(guess) if above >= k else -np.inf


@compiled
def _collect_totals(totals, sums, first, k, slack, kept_rows, kept_sums, kept_totals, count, floor):  # type: ignore[no-untyped-def]
    """Keep totals of at least ``floor``. Returns their number, -1 if they do not fit, and the new floor."""
    low = np.float32(floor)
    row_count = len(totals)
    for start in range(0, row_count, _GROUP):
        stop = min(start + _GROUP, row_count)
        above = np.int32(0)
        for i in range(start, stop):
            above += np.int32(totals[i] >= low)
        if above == 0:
            continue
        if count + _GROUP > len(kept_totals):
            kth = np.partition(kept_totals[:count].copy(), count - k)[count - k]
            floor = max(floor, np.float64(kth) - 2 * slack)
            low = np.float32(floor)
            # Moved within the arrays, always to the front of what was read.
            remaining = 0
            for i in range(count):
                if kept_totals[i] >= low:
                    kept_rows[remaining] = kept_rows[i]
                    kept_sums[remaining] = kept_sums[i]
                    kept_totals[remaining] = kept_totals[i]
                    remaining += 1
            count = remaining
            if count + _GROUP > len(kept_totals):
                return -1, floor
        for i in range(start, stop):
            if totals[i] >= low:
                kept_rows[count] = first + i
                kept_sums[count] = sums[i]
                kept_totals[count] = totals[i]
                count += 1
    return count, floor


@compiled
def _accumulate(files, w, queries, q, row_count, sums):  # type: ignore[no-untyped-def]
    """Add the impacts of query ``q`` in window ``w``, which has ``row_count`` rows, to ``sums``.

    An int32 cannot overflow: the searcher refuses queries that could score 2**31.
    """
    begin = files.starts[w]
    end = files.starts[w + 1]
    window_rows = files.rows[begin:end]
    window_impacts = files.impacts[begin:end]
    columns = files.columns[w]
    pointers = files.pointers[w]
    dense = files.dense
    column_start = files.column_starts[w]
    terms = queries.terms
    weights = queries.weights
    # Columns are added in pairs, so that the accumulator is read and written half as often.
    waiting = np.int64(-1)  # a column that is added together with the next one
    for j in range(queries.starts[q], queries.starts[q + 1]):
        term = terms[j]
        weight = weights[j]
        if columns[term] == 0:
            start = np.int64(pointers[term])
            stop = np.int64(pointers[term + 1])
            _add_postings(window_rows[start:stop], window_impacts[start:stop], weight, sums)
        elif waiting < 0:
            waiting = np.int64(j)
        else:
            one = _column(dense, column_start, columns[terms[waiting]], row_count)
            two = _column(dense, column_start, columns[term], row_count)
            _add_columns(one, weights[waiting], two, weight, sums)
            waiting = np.int64(-1)
    if waiting >= 0:
        one = _column(dense, column_start, columns[terms[waiting]], row_count)
        _add_columns(one, weights[waiting], one, np.int32(0), sums)


@compiled
def _add_postings(rows, impacts, weight, sums):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        sums[rows[i]] += weight * np.int32(impacts[i])


@compiled
def _column(dense, start, number, row_count):  # type: ignore[no-untyped-def]
    """The impacts of column ``number``, counted from 1, of a window whose columns begin at ``start``."""
    begin = start + (np.int64(number) - 1) * row_count
    return dense[begin : begin + row_count]


@compiled
def _add_columns(one, one_weight, two, two_weight, sums):  # type: ignore[no-untyped-def]
    for i in range(min(len(one), len(two))):
        sums[i] += np.int32(one_weight * np.int32(one[i]) + two_weight * np.int32(two[i]))


@compiled
def _collect(sums, row_count, first, ranks, by_row, k, keys, count, floor, scratch, histogram):  # type: ignore[no-untyped-def]
    """Turn sums above ``floor`` into keys and reset all sums. Returns the number of keys and the new floor.

    Sums behind the window are 0 and no floor is below 0, so the rest of the last group adds no keys. Indices of loops
    are unsigned, for which numba compiles no test for a negative index.
    """
    if count == 0:
        floor = _first_floor(sums, row_count, k, scratch, histogram)
    low = np.int32(floor)
    for start in range(np.uint64(0), np.uint64(row_count), np.uint64(_GROUP)):
        signs = np.int32(0)  # negative if any sum is above the floor: cheaper than their maximum
        for i in range(np.uint64(_GROUP)):
            signs |= np.int32(low - sums[start + i])
        if signs < 0:
            if count + _GROUP > len(keys):
                count, floor = _keep_best(keys[:count], k, len(keys) - _GROUP, by_row, histogram)
                low = np.int32(floor)
            tie_key = _LOW_WORD - first - np.int64(start)
            if by_row:
                group = sums[start : start + np.uint64(_GROUP)]
                free_keys = keys[count : count + _GROUP]
                added = np.uint64(0)
                # Branchless: which sums are above is unpredictable. Every key is written, and the next one overwrites
                # it unless its sum is above.
                for i in range(np.uint64(_GROUP)):
                    free_keys[added] = (np.int64(group[i]) << 32) | (tie_key - np.int64(i))
                    added += np.uint64(group[i] > low)
                count += np.int64(added)
            else:
                for i in range(np.uint64(_GROUP)):
                    if sums[start + i] > low:
                        keys[count] = (np.int64(sums[start + i]) << 32) | (
                            _LOW_WORD - ranks[_LOW_WORD - tie_key + np.int64(i)]
                        )
                        count += 1
        for i in range(np.uint64(_GROUP)):
            sums[start + i] = 0
    return count, floor


@compiled
def _first_floor(sums, row_count, k, scratch, histogram):  # type: ignore[no-untyped-def]
    """A score that at least ``k`` of the sums exceed, estimated from a sample and then counted; or 0."""
    sample_size = row_count // _SAMPLING_STEP
    # As in _first_total: a quarter more than k, and three of the sample.
    rank = (k * 5 // 4) // _SAMPLING_STEP + 3
    if 4 * rank > sample_size:
        return np.int64(0)
    for i in range(sample_size):
        scratch[i] = np.int64(sums[i * _SAMPLING_STEP]) << 32
    guess, _ = _kth_score(scratch[:sample_size], rank, histogram)
    low = np.int32(guess)
    above = np.int32(0)
    for i in range(np.uint64(row_count)):
        above += np.int32(sums[i] > low)
    return guess if above >= k else np.int64(0)


@compiled
def _keep_best(keys, k, room, by_row, histogram):  # type: ignore[no-untyped-def]
    """Move the ``k`` best keys to the front, with at most ``room`` in all if some tie. Returns their number and the
    score that a later row must exceed."""
    score, equal = _kth_score(keys, k, histogram)
    kept = 0
    if by_row:  # keys are in row order: among equal scores, the first are the best
        for i in range(len(keys)):
            key_score = keys[i] >> 32
            if key_score > score or (key_score == score and equal > 0):
                equal -= key_score == score
                keys[kept] = keys[i]
                kept += 1
        return kept, score
    # Any key that ties with the k-th may be among the best by its rank.
    for i in range(len(keys)):
        keys[kept] = keys[i]
        better = keys[i] >> 32 >= score
        kept += better
    if kept > k + (room - k) // 2:
        # Ties fill the room. Keys contain the ranks, so sorting them leaves exactly the k best.
        keys[:kept].sort()
        for i in range(k):
            keys[i] = keys[kept - k + i]
        kept = k
    return kept, score - 1  # a later row that ties may come first


@compiled
def _kth_score(keys, k, histogram):  # type: ignore[no-untyped-def]
    """The ``k``-th highest score, and how many of the ``k`` best have it: ten bits at a time from the top.

    Assumes at least ``k`` keys and no negative score: the loop over bins has no other end.
    """
    best = np.int64(0)
    for i in range(len(keys)):
        best = max(best, keys[i])
    best >>= 32
    # Leading zeros of the highest score need no pass.
    shift = 0
    while best >> shift >= _BINS:
        shift += 1
    above = shift + _DIGIT_BITS
    prefix = np.int64(0)  # the bits of the score from `above` on
    needed = k
    while True:
        histogram[:] = 0
        mask = (1 << (above - shift)) - 1
        for i in range(len(keys)):
            score = keys[i] >> 32
            if score >> above == prefix:
                histogram[(score >> shift) & mask] += 1
        digit = mask
        while histogram[digit] < needed:
            needed -= histogram[digit]
            digit -= 1
        prefix = (prefix << (above - shift)) | digit
        if shift == 0:
            return prefix, needed
        above = shift
        shift = max(0, shift - _DIGIT_BITS)


@compiled
def inner_products(indptr, terms, impacts, rows, table, out):  # type: ignore[no-untyped-def]
    """``out[i]`` = sum over the terms of ``rows[i]`` of impact times ``table[term]``; int64 throughout."""
    for i in range(len(rows)):
        start = indptr[rows[i]]
        stop = indptr[rows[i] + 1]
        row_terms = terms[start:stop]
        row_impacts = impacts[start:stop]
        total = np.int64(0)
        for j in range(len(row_terms)):
            total += table[row_terms[j]] * np.int64(row_impacts[j])
        out[i] = total


@compiled
def search_codes(  # type: ignore[no-untyped-def]
    files, window, documents, queries, q, codes, code_query, allowed, windows, k, threshold, kept
):
    """Rows that can be among the ``k`` best of query q by an inner product, of which ``codes`` give bounds, plus
    ``code_query.unit`` times the integer sum of impacts: returns how many are ``kept``, -1 if they did not fit.

    ``windows``: the first window and the one after the last. A row is kept unless its upper bound is below
    ``threshold``, or below the k-th highest of the lower bounds of the rows kept so far. ``window`` is a multiple of
    :data:`BLOCK`, so that a window begins with a block of codes.
    """
    sums = np.zeros(ACCUMULATORS, np.int32)
    near = np.empty(ACCUMULATORS, np.int32)
    count = 0
    mark = k
    totals = np.empty(ACCUMULATORS, np.float32)
    bounds = np.empty(ACCUMULATORS, np.float32)
    for w in range(windows[0], windows[1]):
        first = w * window
        row_count = min(window, documents - first)
        if files is not None:
            _accumulate(files, w, queries, q, row_count, sums)
        _first_bounds(sums, row_count, first, codes, code_query, totals, bounds)
        # An empty mask stands for all rows: no iterations.
        for i in range(min(row_count, len(allowed) - first)):
            if not allowed[first + i]:
                bounds[i] = -np.inf
                totals[i] = -np.inf
        floor = np.float32(-np.inf)
        if threshold <= _MIN_TOTAL:  # nothing is known of the k-th best yet
            floor = np.float32(_first_total(totals[:row_count], 4 * k))
        first_start = 0
        if floor > _MIN_TOTAL:
            first_start = -_ROWS_PER_STEP
        for start in range(first_start, row_count, _ROWS_PER_STEP):
            if start < 0:  # rows of high totals first, which exclude most of the others
                near_count = _near(totals, 0, row_count, floor, near)
                bounds[near[:near_count]] = -np.inf
            else:
                stop = min(start + _ROWS_PER_STEP, row_count)
                near_count = _near(bounds, start, stop, threshold, near)
            count, mark, threshold = _keep(
                near[:near_count],
                sums,
                first,
                codes,
                code_query,
                totals,
                k,
                threshold,
                mark,
                kept,
                count,
            )
            if count < 0:
                return -1
        sums[:row_count] = 0
    return count


@compiled
def _first_bounds(sums, row_count, first, codes, code_query, totals, bounds):  # type: ignore[no-untyped-def]
    """Set totals of impacts and the first chunk, and upper bounds, of the rows of a window."""
    products = np.empty(BLOCK, np.int32)
    for start in range(0, row_count, BLOCK):
        row = first + start
        here = slice(start, start + BLOCK)
        block_products(codes.head[row // BLOCK], code_query.high, code_query.low, products)
        _bound(
            sums[here],
            products,
            code_query,
            codes.errors[0, row:],
            codes.rests[row:],
            totals[here],
            bounds[here],
        )
    # The last block, and what is read 64 at a time behind it, has rows that do not exist.
    totals[row_count : row_count + BLOCK] = -np.inf
    bounds[row_count : row_count + BLOCK] = -np.inf


@compiled
def _bound(sums, products, code_query, errors, rests, totals, bounds):  # type: ignore[no-untyped-def]
    for i in range(BLOCK):
        product = np.float32(np.int32(2 * products[i] - code_query.offsets[0])) * (
            _HIGH_HALF_UNIT * code_query.scale
        )
        totals[i] = code_query.constant + np.float32(sums[i]) * code_query.unit + product
        bounds[i] = totals[i] + code_query.lengths[0] * errors[i] + code_query.spread * rests[i]


@compiled
def _near(bounds, start, stop, threshold, near):  # type: ignore[no-untyped-def]
    """List the rows whose bound is not below ``threshold`` in ``near``; returns how many."""
    count = 0
    for block in range(start, stop, BLOCK):
        bits = near_rows(bounds, block, threshold)
        while bits:
            near[count] = block + trailing_zeros(bits)
            bits &= bits - np.uint64(1)  # clears the lowest bit
            count += 1
    return count


@compiled
def _keep(near, sums, first, codes, code_query, totals, k, threshold, mark, kept, count):  # type: ignore[no-untyped-def]
    """Keep near rows, unless the high halves of all chunks or complete codes exclude them. Returns the number of kept
    rows, -1 if they do not fit, and the new threshold."""
    for stage in range(1, 3):
        near = near[: _narrow(near, stage, first, codes, code_query, totals, threshold)]
    for i in near:
        error = code_query.lengths[2] * codes.errors[2, first + i]
        upper = totals[i] + error
        if upper < threshold:
            continue
        kept.rows[count] = first + i
        kept.sums[count] = sums[i]
        kept.totals[count] = upper
        # The score differs from what the codes give by at most the error and the slack; the upper bound adds both.
        kept.lowers[count] = upper - np.float32(2) * (error + code_query.slack)
        count += 1
        # The k-th lower bound is looked for again when the list has grown by half of k or by a quarter, not for each
        # row: finding it reads the complete list.
        if count >= mark or count == len(kept.rows):
            count, threshold = _raise_threshold(kept, count, k, threshold)
            mark = count + max(k // 2, count // 4, 16)
            if count == len(kept.rows):
                return -1, mark, threshold
    return count, mark, threshold


@compiled
def _narrow(near, stage, first, codes, code_query, totals, threshold):  # type: ignore[no-untyped-def]
    """Add what a stage reads to the totals of near rows; returns how many, moved to the front, it does not exclude.

    Stage 1 reads the high halves of all chunks but the first, which the totals contain, and stage 2 the low halves of
    all chunks.
    """
    if stage == 1:
        halves = codes.high
        scale = _HIGH_HALF_UNIT * code_query.scale
        first_component = CHUNK
    else:
        halves = codes.low
        scale = code_query.scale
        first_component = 0
    flat = halves.reshape(-1)
    width = halves.shape[1]
    high = code_query.high
    low = code_query.low
    chunks = width // (CHUNK // 2)
    errors = codes.errors[stage, first:]
    length = code_query.lengths[stage]
    offset = code_query.offsets[stage]
    remaining = 0
    for i in near:
        product = row_product(flat, (first + i) * width, high, low, first_component, chunks)
        totals[i] += np.float32(np.int32(2 * product - offset)) * scale
        near[remaining] = i
        remaining += not totals[i] + length * errors[i] < threshold  # NaN excludes no row
    return remaining


@compiled
def _raise_threshold(kept, count, k, threshold):  # type: ignore[no-untyped-def]
    """Raise the threshold to the ``k``-th highest lower bound, which ``k`` rows reach, and drop the rows below it.

    Returns the number of remaining rows and the threshold.
    """
    if count >= k:
        threshold = max(threshold, np.partition(kept.lowers[:count].copy(), count - k)[count - k])
    rows = kept.rows
    sums = kept.sums
    totals = kept.totals
    lowers = kept.lowers
    remaining = 0
    for i in range(count):
        if not totals[i] < threshold:  # NaN is kept
            rows[remaining] = rows[i]
            sums[remaining] = sums[i]
            totals[remaining] = totals[i]
            lowers[remaining] = lowers[i]
            remaining += 1
    return remaining, threshold


def _remove_old_caches() -> None:
    """Remove caches older than the classes of the arguments (:mod:`dupmae_ir.index.postings.compiling`).

    numba reads a cache before it compares the source's date, and fails if one of its classes has moved.
    """
    changed = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    folder = search.stats.cache_path
    if not folder:
        return  # nothing is kept
    for path in Path(folder).glob(f"{Path(__file__).stem}.*.nbi"):
        with contextlib.suppress(OSError):  # another process was faster, or the folder is not ours
            if path.stat().st_mtime < changed:
                path.unlink()


_remove_old_caches()
