"""Rows that are tokens already, as trainers leave them: ids, which of them are learnt, and the documents among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from preshard.packer_service.ingest.document import LEAST_WEIGHT, MOST_WEIGHT, Document, GivenTokens
from preshard.packer_service.ingest.source.forms.fields import bad, kind_of, listed, parsed_json, shown
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX, TokenColumn

IDS, LABELS, POSITIONS = "input_ids", "labels", "position_ids"
MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""Names of the mask that says which tokens are learnt: as verl and Megatron, and as TRL name it. Numbers other than 0
and 1 weigh the loss."""
PADDING = "attention_mask"
LENGTHS = ("document_lengths", "seq_lengths")
"""Tokens of each document in the row; the second is TRL's name."""
COLUMNS = (LABELS, *MASKS, PADDING, POSITIONS, *LENGTHS)


def parse_tokens(row: dict[str, Any]) -> Document:
    """The form ``tokens``: token i is learnt if ``labels[i]`` is ``input_ids[i]`` and every mask has it.

    Raises:
        DocumentError: ``bad_row``; ``empty``: no token could have a label.
    """
    ids = whole_numbers(row.get(IDS), IDS)
    n = len(ids)
    loss = np.ones(n, np.float32)
    if LABELS in row:
        loss[_unlabelled(_of_length(whole_numbers(row[LABELS], LABELS), n, LABELS), ids)] = 0
    for name in MASKS:
        if name in row:
            loss *= _weights(row[name], n, name)
    lengths = _lengths(row, n)
    kept = _not_padding(row, n)
    if lengths is not None and not kept.all():
        bad(f"{PADDING} has 0 in a row of several documents; leave the padding out of {IDS}")
    if not kept.any():
        raise DocumentError("empty", f"{IDS} has no token")
    return Document(
        tokens=GivenTokens(ids=ids[kept], loss=loss[kept], lengths=lengths or (int(kept.sum()),), kept=kept)
    )


def whole_numbers(value: Any, where: str) -> Int64[np.ndarray, "n"]:
    """A list of whole numbers.

    Raises:
        DocumentError: ``bad_row``.
    """
    value = listed(parsed_json(value, where), where)
    for at, item in enumerate(value):
        if type(item) is not int or not -(2**63) <= item < 2**63:
            bad(f"{where}[{at}] is {shown(item)}, not a whole number")
    return np.array(value, np.int64)


def _of_length(array: np.ndarray, n: int, where: str) -> np.ndarray:
    if len(array) != n:
        bad(f"{where} has {len(array)} entries, and {IDS} has {n}")
    return array


def _unlabelled(labels: Int64[np.ndarray, "n"], ids: Int64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    unlabelled = labels == IGNORE_INDEX
    wrong = np.flatnonzero(~unlabelled & (labels != ids))
    if len(wrong):
        at = int(wrong[0])
        following = ids[1:] == labels[:-1]
        shifted = len(ids) > 1 and bool((following | unlabelled[:-1]).all()) and bool(following.any())
        what = f"labels[{at}] is {labels[at]}, and {IDS}[{at}] is {ids[at]}"
        if shifted:
            bad(f"{what}: labels are shifted already; give the label of each token at its own place, or a loss_mask")
        bad(f"{what}; legal are the token itself and {IGNORE_INDEX}")
    return unlabelled


def _weights(value: Any, n: int, where: str) -> Float32[np.ndarray, "n"]:
    numbers = _of_length(float_numbers(value, where), n, where)
    if numbers.ndim != 1:
        bad(f"{where} is a list of lists, not of numbers")
    wrong = ~((numbers == 0) | ((numbers >= LEAST_WEIGHT) & (numbers <= MOST_WEIGHT)))
    if wrong.any():
        at = int(wrong.argmax())
        bad(f"{where}[{at}] is {numbers[at]:g}; legal are 0 and numbers from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f}")
    return numbers.astype(np.float32)


def _lengths(row: dict[str, Any], n: int) -> tuple[int, ...] | None:
    """Tokens of each document in a row, which lengths or positions say; None if neither is there."""
    found: dict[str, tuple[int, ...]] = {}
    for name in LENGTHS:
        if name in row:
            given = whole_numbers(row[name], name)
            if (given < 1).any() or given.sum() != n:
                bad(f"{name} is {shown(row[name])}; legal are numbers from 1 that add up to {n}, the length of {IDS}")
            found[name] = tuple(given.tolist())
    if POSITIONS in row:
        found[POSITIONS] = _by_positions(_of_length(whole_numbers(row[POSITIONS], POSITIONS), n, POSITIONS))
    if len(set(found.values())) > 1:
        (one, a), (other, b) = list(found.items())[:2]
        bad(f"{one} gives {len(a)} documents and {other} {len(b)}, with other edges; give one of the two")
    return next(iter(found.values()), None)


def _by_positions(positions: Int64[np.ndarray, "n"]) -> tuple[int, ...]:
    starts = np.flatnonzero(positions == 0)
    every = np.arange(len(positions))
    expected = every - np.repeat(starts, np.diff(starts, append=len(positions))) if len(starts) else every
    if len(expected) != len(positions) or (expected != positions).any():
        wrong = 0 if len(expected) != len(positions) else int((expected != positions).argmax())
        bad(f"{POSITIONS}[{wrong}] is {positions[wrong]}; positions must count up by one, from 0 in each document")
    return tuple(np.diff(starts, append=len(positions)).tolist())


def _not_padding(row: dict[str, Any], n: int) -> Bool[np.ndarray, "n"]:
    if PADDING not in row:
        return np.ones(n, np.bool_)
    kept = _of_length(float_numbers(row[PADDING], PADDING), n, PADDING)
    if kept.ndim != 1 or not np.isin(kept, (0, 1)).all() or np.count_nonzero(np.diff(kept, prepend=0, append=0)) > 2:
        bad(f"{PADDING} is not 1 on one range of tokens and 0 on the padding around it")
    return kept.astype(np.bool_)


def float_numbers(value: Any, where: str) -> np.ndarray:
    """A list of numbers, or of lists of as many numbers each, with NaN for null.

    Raises:
        DocumentError: ``bad_row``.
    """
    value = parsed_json(value, where)
    given = _plain_array(listed(value, where), where)
    if given.dtype.kind not in "biuf" or given.ndim not in (1, 2):
        bad(f"{where} is {shown(value)}, not a list of numbers, or of equally long lists of numbers")
    return given.astype(np.float64)


def _plain_array(value: list[Any], where: str) -> np.ndarray:
    width = next((len(item) for item in value if isinstance(item, list)), None)
    if width is not None:
        value = [[None] * width if item is None else item for item in value]
    try:
        array = np.array(value)
        if array.dtype.kind == "O":
            missing = np.array([item is None for item in array.flat]).reshape(array.shape)
            rest = np.array(array[~missing].tolist())
            filled = np.full(array.shape, np.nan)
            if rest.dtype.kind in "biuf" and rest.ndim == 1:
                filled[~missing] = rest
                return filled
    except (ValueError, OverflowError):
        bad(f"{where} holds lists of different lengths, or numbers that are too large")
    return array


def column_values(column: TokenColumn, value: Any) -> np.ndarray:
    """Values of a column in a row: one entry for each token or turn, or for the whole row, with NaN for null.

    Raises:
        DocumentError: ``bad_row``: not numbers of the column's type and width.
    """
    where, width = column.name, column.width
    value = parsed_json(value, where)
    is_list = isinstance(value, list)
    if not is_list and not isinstance(value, int | float):
        bad(f"{where} is {kind_of(value)}, not a number or a list of them")
    is_one = not is_list or (width is not None and not any(isinstance(item, list) for item in value))
    array = float_numbers([value] if is_one else value, where)
    if array.shape[1:] != (() if width is None else (width,)) and len(array):
        asked = "one number" if width is None else f"{width} numbers"
        bad(f"{where} has {array.shape[1] if array.ndim == 2 else 1} numbers in each entry, not {asked}")
    given = array[~np.isnan(array)]
    if column.dtype.kind == "f":
        wrong, legal = np.abs(given) > np.finfo(np.float32).max, "numbers that float32 holds"
    else:
        limits = (0, 1) if column.dtype == np.bool_ else (-(2**31), 2**31 - 1)
        wrong = (given != np.trunc(given)) | (given < limits[0]) | (given > limits[1])
        legal = "true and false, or 1 and 0" if column.dtype == np.bool_ else "whole numbers that int32 holds"
    if wrong.any():
        bad(f"{where} has {given[wrong][0]:g}; legal in {column.dtype} are {legal}")
    return array
