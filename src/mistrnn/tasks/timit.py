"""TIMIT (Garofolo et al. 1993): which phone is spoken, frame by frame, as the sentence comes.

Each frame (25 ms, every 10 ms) is 12 cepstral coefficients and the log energy, each sentence shifted and scaled to mean 0 and
variance 1. A frame has the label of the sample nearest to its start, as in the code of the paper's authors, or, with
`label_at="middle"`, to its middle, 12.5 ms later. The 61 phones are folded to Lee & Hon's 39, with closures and pauses as
silence, and the glottal stop as the 40th. The two sentences that all speakers read (SA) are left out. Training: the 462
speakers of the TRAIN folder; validation: 50 speakers and test: 24 speakers (the core test set) of the TEST folder (Halberstadt
1998).

`prepare_timit` also takes the sample of TIMIT that comes with NLTK, 16 speakers in folders such as dr1-fvmh0, split by speaker.
"""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._mfcc import STEP, WINDOW, mfcc
from mistrnn.tasks._recordings import Frames, Item, RecordingTask, prepare, standardised
from mistrnn.tasks._source import Source, opened
from mistrnn.tasks._task import Split

RATE = 16_000
TRAIN_SPEAKERS = 462
OVERHANG = 1_600
"""Samples that labels may go on after the sound: in some files they do."""

FOLDED = {
    "ao": "aa", "ax": "ah", "ax-h": "ah", "axr": "er", "hv": "hh", "ix": "ih", "el": "l", "em": "m", "en": "n", "nx": "n",
    "eng": "ng", "zh": "sh", "ux": "uw",
    **dict.fromkeys(("pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi"), "sil"),
}  # fmt: skip
"""Phones that count as another; the rest stand for themselves."""


def _words(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split(" "))


CLASSES = _words(
    "aa ae ah aw ay b ch d dh dx eh er ey f g hh ih iy jh k l m n ng ow oy p q r s sh sil t th uh uw v w y z"
)

CORE_TEST = _words(
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0",
    "mnjm0 fdhc0 mjln0 mpam0 fmld0",
)
VALIDATION = _words(
    "faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0 mglb0 mrtk0",
    "mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0",
    "fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1",
)

OFFICIAL = re.compile(r"(?:.*/)?(train|test)/dr\d/([fm][a-z]{3}\d)/(s[aix]\d+)\.phn", re.IGNORECASE)
SAMPLE = re.compile(r"(?:.*/)?dr\d-([fm][a-z]{3}\d)/(s[aix]\d+)\.phn", re.IGNORECASE)
LABEL_AT = ("start", "middle")
"""Where in a frame its label is read; the first is that of the paper's authors."""
SAMPLE_NOTE = "The data is the TIMIT sample of NLTK (16 speakers), not TIMIT."


class Timit(RecordingTask):
    """Name the phone of every frame."""

    name = "timit"
    summary = "name the phone of every 10 ms of speech (3,696 / 400 / 192 sentences; or NLTK's sample)"
    data_command = "mist data timit --from DIR --dir OUT"
    settings: ClassVar[dict[str, str]] = {}
    data_names = ("TIMIT", "TIMIT sample (NLTK)")
    default_steps = 2_000
    validation_interval = 10


def prepare_timit(
    place: Path, folder: Path, say: Callable[[str], None] = lambda line: None, *, label_at: str = "start"
) -> None:
    """Prepare TIMIT, or its sample, from a folder or a zip archive; a frame has the label at its start or its middle."""
    if label_at not in LABEL_AT:
        raise UsageError(f"expected label_at among {', '.join(LABEL_AT)}, got {label_at!r}.")
    with opened(place) as source:
        found = [(name, match) for name in source.names if (match := OFFICIAL.fullmatch(name))]
        if found:
            items = _official(source, found, label_at)
            prepare(folder, "TIMIT", CLASSES, items, str(place.resolve()), say)
            return
        sample = [(name, match) for name in source.names if (match := SAMPLE.fullmatch(name))]
        if not sample:
            raise UsageError(
                f"{place}: expected TIMIT, with files such as TRAIN/DR1/FCJF0/SI1027.PHN, or NLTK's sample of it, with files "
                "such as dr1-fvmh0/sx206.phn, and found neither."
            )
        prepare(
            folder,
            "TIMIT sample (NLTK)",
            CLASSES,
            _sample(source, sample, label_at),
            str(place.resolve()),
            say,
            SAMPLE_NOTE,
        )


def _official(source: Source, found: Sequence[tuple[str, re.Match[str]]], label_at: str) -> list[Item]:
    items, speakers, sounds = [], set(), _sounds(source)
    for name, match in found:
        part, speaker, sentence = (text.lower() for text in match.groups())
        speakers.add((part, speaker))
        if sentence.startswith("sa"):
            continue
        split: Split | None = "train"
        if part == "test":
            split = "test" if speaker in CORE_TEST else "val" if speaker in VALIDATION else None
        if split is not None:
            items.append(_item(source, sounds, name, speaker, split, label_at))
    trained = sum(part == "train" for part, _ in speakers)
    if trained != TRAIN_SPEAKERS:
        raise UsageError(f"{source.place}: expected {TRAIN_SPEAKERS} speakers in the TRAIN folder, got {trained}.")
    missing = sorted(speaker for speaker in (*CORE_TEST, *VALIDATION) if ("test", speaker) not in speakers)
    if missing:
        some = ", ".join(missing[:5])
        raise UsageError(f"{source.place}: {len(missing)} speakers of the TEST folder are missing, such as {some}.")
    return items


def _sample(source: Source, found: Sequence[tuple[str, re.Match[str]]], label_at: str) -> list[Item]:
    """Of the speakers in the order of their names, the 3rd, 8th and 13th validate, the 5th, 10th and 15th test."""
    speakers = sorted({match[1].lower() for _, match in found})
    splits: dict[str, Split] = {
        speaker: "val" if number % 5 == 2 else "test" if number % 5 == 4 else "train"
        for number, speaker in enumerate(speakers)
    }
    sounds = _sounds(source)
    return [
        _item(source, sounds, name, match[1].lower(), splits[match[1].lower()], label_at)
        for name, match in found
        if not match[2].lower().startswith("sa")
    ]


def _sounds(source: Source) -> dict[str, str]:
    """Return the files of sound by their path in small letters, without its ending."""
    return {name.lower().partition(".wav")[0]: name for name in source.names if name.lower().endswith(".wav")}


def _item(source: Source, sounds: dict[str, str], phones: str, speaker: str, split: Split, label_at: str) -> Item:
    stem = phones.lower().removesuffix(".phn")
    sentence = stem.rsplit("/", 1)[-1]
    if stem not in sounds:
        raise UsageError(f"{source.where(phones)}: expected its sound file ({sentence}.wav).")
    files = phones, sounds[stem]
    stamp = f"{label_at} {source.stamp(*files)}"
    return Item(f"{speaker}/{sentence}", speaker, split, stamp, partial(_load, source, *files, label_at))


def _load(source: Source, phones: str, sound: str, label_at: str) -> Frames:
    """Return a sentence's frames and their classes."""
    try:
        import soundfile  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise UsageError("reading sound needs the package soundfile: pip install 'mistrnn[speech]'") from error
    try:
        signal, rate = soundfile.read(io.BytesIO(source.read(sound)), dtype="int16")
    except soundfile.LibsndfileError as error:
        raise UsageError(f"{source.where(sound)}: not readable as NIST SPHERE or RIFF sound ({error}).") from error
    if rate != RATE or signal.ndim != 1:
        raise UsageError(f"{source.where(sound)}: expected one channel at {RATE} Hz, got {signal.shape} at {rate} Hz.")
    begin, labels = _labels(source, phones, len(signal))
    features = mfcc(signal[begin : begin + len(labels)], RATE)
    places = (np.arange(len(features)) * STEP + (WINDOW / 2 if label_at == "middle" else 0)) * RATE
    if not len(features):
        raise UsageError(f"{source.where(phones)}: expected at least {WINDOW * 1000:.0f} ms of labelled sound.")
    return standardised(features), labels[places.round().astype(int)]


def _labels(source: Source, name: str, samples: int) -> tuple[int, NDArray[np.int16]]:
    """Return the first labelled sample and the class of every sample from there on."""
    places: list[tuple[int, int, int]] = []
    for number, line in enumerate(source.text(name).splitlines(), start=1):
        where = f"{source.where(name)}, line {number}"
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
            raise UsageError(f"{where}: expected 'begin end phone', got {line!r}.")
        begin, end, phone = int(words[0]), int(words[1]), FOLDED.get(words[2].lower(), words[2].lower())
        if phone not in CLASSES:
            raise UsageError(f"{where}: unknown phone {words[2]!r}.")
        if begin >= end or (places and begin != places[-1][1]):
            expected = f"a label that begins at {places[-1][1]}" if places else "a label with a length"
            raise UsageError(f"{where}: expected {expected}, without gap or overlap, got {begin} to {end}.")
        places.append((begin, end, CLASSES.index(phone)))
    if not places:
        raise UsageError(f"{source.where(name)}: expected labels, and there are none.")
    if places[-1][1] > samples + OVERHANG:
        raise UsageError(f"{source.where(name)}: labels go on to sample {places[-1][1]}, and the sound has {samples}.")
    first, last = places[0][0], min(places[-1][1], samples)
    labels = np.empty(max(0, last - first), dtype=np.int16)
    for begin, end, number in places:
        labels[begin - first : max(0, min(end, last) - first)] = number
    return first, labels
