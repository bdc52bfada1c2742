"""How numbers are written, the same in figures, tables and the terminal."""

from __future__ import annotations


def short_count(value: float) -> str:
    """Three digits that matter and a unit, as the paper writes MACs.

    >>> short_count(174301824), short_count(893_000), short_count(960), short_count(15_470_000_000)
    ('174.3M', '893k', '960', '15.5G')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return (
                f"{scaled:.0f}{unit}"
                if scaled == round(scaled) or (unit == "k" and scaled >= 10)
                else f"{scaled:.1f}{unit}"
            )
    return f"{value:.0f}"


def mebibytes(value: float) -> str:
    """Bytes as MiB or GiB (2^20, 2^30).

    >>> mebibytes(56.1 * 2**20), mebibytes(3.06 * 2**30)
    ('56.1 MiB', '3.06 GiB')
    """
    if value >= 1000 * 2**20:
        return f"{value / 2**30:.2f} GiB"
    scaled = value / 2**20
    return f"{scaled:.1f} MiB" if scaled >= 10 else f"{scaled:.2f} MiB"


def times(value: float) -> str:
    """A ratio.

    >>> times(3.934)
    '3.93×'
    """
    return f"{value:.2f}×"


def milliseconds(value: float) -> str:
    """Three digits that matter.

    >>> milliseconds(1.2345), milliseconds(45.67), milliseconds(0.01234)
    ('1.23 ms', '45.7 ms', '0.0123 ms')
    """
    return f"{short_time(value)} ms"


def short_time(value: float) -> str:
    """The same without the unit, for a column that names it.

    >>> short_time(1.2345)
    '1.23'
    """
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    return f"{value:.{digits}f}"
