"""The Triton kernels; constexpr arguments are known when a kernel is compiled.

A row of a program is one query of one query head; heads that share a key head are adjacent rows.
"""

import triton
import triton.language as tl


@triton.jit
def store(  # noqa: PLR0913 - a kernel takes every tensor as an argument
    key, value, keys, values, slots,
    key_head, key_token, key_column, value_head, value_token, value_column,
    heads: tl.constexpr, key_width: tl.constexpr, value_width: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Write the new key and value of one token and head to their slot."""
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        column = tl.arange(0, columns)
        entry = slot * heads + head
        in_key, in_value = column < key_width, column < value_width
        new_key = tl.load(key + head * key_head + token * key_token + column * key_column, mask=in_key)
        tl.store(keys + entry * key_width + column, new_key, mask=in_key)
        new_value = tl.load(value + head * value_head + token * value_token + column * value_column, mask=in_value)
        tl.store(values + entry * value_width + column, new_value, mask=in_value)


@triton.jit
def attend(  # noqa: PLR0913
    query, keys, values, sums, tops, masses,
    starts, lengths, tables, pages, bits, positions,
    query_head, query_token, query_column, scale, softcap, window, splits, tiles, tokens,
    heads: tl.constexpr, groups: tl.constexpr, tile_rows: tl.constexpr,
    page_tokens: tl.constexpr, tile_keys: tl.constexpr,
    key_width: tl.constexpr, key_columns: tl.constexpr, value_width: tl.constexpr, value_columns: tl.constexpr,
    capped: tl.constexpr, windowed: tl.constexpr,
):  # fmt: skip
    """Store the partial softmax and sum of each row, for one sequence, key head, tile of rows and split of the keys."""
    sequence, head, split = tl.program_id(0), tl.program_id(1) // tiles, tl.program_id(2)
    tile = tl.program_id(1) % tiles
    first, length = tl.load(starts + sequence), tl.load(lengths + sequence)
    count = tl.load(starts + sequence + 1) - first
    if (length > 0) & (tile * tile_rows < count * groups):
        table = tl.load(tables + sequence)
        context = length - count
        row = tile * tile_rows + tl.arange(0, tile_rows)
        node = row // groups
        is_row = node < count
        token = first + node
        key_column, value_column = tl.arange(0, key_columns), tl.arange(0, value_columns)
        in_key, in_value = key_column < key_width, value_column < value_width
        of_row = token * query_token + (head * groups + row % groups) * query_head
        q = tl.load(
            query + of_row[:, None] + key_column[None, :] * query_column,
            mask=is_row[:, None] & in_key[None, :],
            other=0.0,
        )
        lineage = tl.load(bits + token, mask=is_row, other=0)
        position = tl.load(positions + token, mask=is_row, other=0)
        low = context * 0
        if windowed:
            low = tl.maximum(context - window + 1, 0) // tile_keys * tile_keys
        share = tl.cdiv(tl.cdiv(length - low, splits), tile_keys) * tile_keys
        begin = low + split * share
        last = tile * tile_rows + tile_rows - 1
        end = tl.minimum(tl.minimum(begin + share, length), context + last // groups + 1)
        total = tl.zeros([tile_rows, value_columns], tl.float32)
        top = tl.full([tile_rows], float("-inf"), tl.float32)
        mass = tl.zeros([tile_rows], tl.float32)
        for at in range(begin, end, tile_keys):
            seen = at + tl.arange(0, tile_keys)
            is_key = seen < end
            page = tl.load(pages + table + seen // page_tokens, mask=is_key, other=0)
            entry = (page * page_tokens + seen % page_tokens) * heads + head
            k = tl.load(
                keys + entry[:, None] * key_width + key_column[None, :],
                mask=is_key[:, None] & in_key[None, :],
                other=0.0,
            )
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if capped:
                shrunk = tl.exp(-2.0 * tl.abs(score / softcap))
                tanh = (1.0 - shrunk) / (1.0 + shrunk)
                score = softcap * tl.where(score < 0, -tanh, tanh)
            new = seen - context
            bit = (lineage[:, None] >> tl.minimum(tl.maximum(new, 0), 63)[None, :]) & 1
            before = (lineage == 0)[:, None] & (new[None, :] <= node[:, None])
            is_open = (new < 0)[None, :] | (bit == 1) | before
            if windowed:
                of_new = tl.load(positions + first + tl.maximum(new, 0), mask=is_key & (new >= 0), other=0)
                is_open = is_open & (tl.where(new < 0, seen, of_new)[None, :] > position[:, None] - window)
            score = tl.where(is_open & is_key[None, :] & is_row[:, None], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            level = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp(score - level[:, None])
            fade = tl.exp(top - level)
            v = tl.load(
                values + entry[:, None] * value_width + value_column[None, :],
                mask=is_key[:, None] & in_value[None, :],
                other=0.0,
            )
            total = total * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            mass = mass * fade + tl.sum(weight, 1)
            top = higher
        to = ((head * splits + split) * tokens + token) * groups + row % groups
        tl.store(sums + to[:, None] * value_columns + value_column[None, :], total, mask=is_row[:, None])
        tl.store(tops + to, top, mask=is_row)
        tl.store(masses + to, mass, mask=is_row)


@triton.jit
def join(  # noqa: PLR0913
    sums, tops, masses, owner, sinks, out, tokens,
    heads: tl.constexpr, groups: tl.constexpr, splits: tl.constexpr,
    value_width: tl.constexpr, value_columns: tl.constexpr, has_sinks: tl.constexpr,
):  # fmt: skip
    """Join the results of all splits for one token and query head; zeros for a token without an owner."""
    token, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, value_columns)
    result = tl.zeros([value_columns], tl.float32)
    if tl.load(owner + token) >= 0:
        part = head // groups * splits + tl.arange(0, splits)
        entry = (part * tokens + token) * groups + head % groups
        found = tl.load(tops + entry)
        top = tl.max(found, 0)
        if has_sinks:
            sink = tl.load(sinks + head).to(tl.float32)
            top = tl.maximum(top, sink)
        weight = tl.exp(found - top)
        mass = tl.sum(tl.load(masses + entry) * weight, 0)
        if has_sinks:
            mass += tl.exp(sink - top)
        parts = tl.load(sums + entry[:, None] * value_columns + column[None, :])
        result = tl.sum(parts * weight[:, None], 0) / mass
    entry = (token * heads * groups + head) * value_width + column
    tl.store(out + entry, result.to(out.dtype.element_ty), mask=column < value_width)
