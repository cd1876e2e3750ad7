"""Small data sets of recordings in the exact layouts of the official ones."""

import wave
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from mistrnn.tasks import timit

PHONES = [
    "h#",
    "sh",
    "ix",
    "hv",
    "eh",
    "dcl",
    "jh",
    "ih",
    "dcl",
    "d",
    "ah",
    "kcl",
    "k",
    "s",
    "ux",
    "q",
    "en",
    "gcl",
    "g",
    "r",
    "iy",
    "s",
    "ix",
    "epi",
    "w",
    "ao",
    "sh",
    "epi",
    "axr",
    "tcl",
    "t",
    "uw",
]


def riff(samples: np.ndarray) -> bytes:
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


def sphere(samples: np.ndarray) -> bytes:
    """NIST SPHERE, as on the LDC's discs: a header of 1,024 bytes, then the samples."""
    lines = [
        "NIST_1A", "   1024", "database_id -s5 TIMIT", f"sample_count -i {len(samples)}", "sample_rate -i 16000",
        "channel_count -i 1", "sample_n_bytes -i 2", "sample_byte_format -s2 01", "sample_sig_bits -i 16", "end_head", "",
    ]  # fmt: skip
    return "\n".join(lines).encode().ljust(1024, b" ") + samples.astype("<i2").tobytes()


def sentence(seed: int, phones: Sequence[str]) -> tuple[np.ndarray, str]:
    """A noisy tone and its labels, 800 samples for each phone."""
    draw = np.random.RandomState(seed)
    samples = (
        2000 * np.sin(np.arange(800 * len(phones)) * (0.02 + 0.01 * (seed % 7))) + 50 * draw.randn(800 * len(phones))
    ).round()
    labels = "".join(f"{800 * k} {800 * (k + 1)} {phone}\n" for k, phone in enumerate(phones))
    return samples, labels


TIMIT_TRAIN_SPEAKERS = 3


def write_timit(folder: Path, upper: bool = True, nist: bool = True) -> Path:
    """TRAIN and TEST: few training speakers, all of validation and core test, each with one SA and two other sentences."""
    parts = [("train", ["fcjf0", "mabc1", "fdef2"]), ("test", [*timit.CORE_TEST, *timit.VALIDATION, "fxyz0"])]
    number = 0
    for part, speakers in parts:
        for speaker in speakers:
            for name in ("sa1", "si1027", "sx37"):
                number += 1
                phones = [PHONES[(number + k) % len(PHONES)] for k in range(4 + number % 5)]
                samples, labels = sentence(number, phones)
                for kind, content in (("wav", sphere(samples) if nist else riff(samples)), ("phn", labels.encode())):
                    path = f"{part}/dr1/{speaker}/{name}.{kind}"
                    place = folder / (path.upper() if upper else path)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(content)
    return folder


def write_timit_sample(folder: Path) -> Path:
    for number in range(16):
        for name in ("sa1", "sx37", "si5"):
            samples, labels = sentence(number, [PHONES[(number + k) % len(PHONES)] for k in range(5)])
            place = folder / f"dr{number // 2 + 1}-{'fm'[number % 2]}ab{'cdefghij'[number // 2]}0"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.wav").write_bytes(riff(samples))
            (place / f"{name}.phn").write_text(labels)
    return folder


def write_hapt(folder: Path, users: int = 30) -> Path:
    raw = folder / "RawData"
    raw.mkdir(parents=True)
    draw = np.random.RandomState(0)
    lines = []
    for user in range(1, users + 1):
        for sensor in ("acc", "gyro"):
            values = draw.randn(60, 3)
            text = "".join(" ".join(f"{v:.6f}" for v in row) + "\n" for row in values)
            (raw / f"{sensor}_exp{user:02}_user{user:02}.txt").write_text(text)
        lines += [f"{user} {user} {1 + user % 3} 5 24", f"{user} {user} {1 + (user + 1) % 3} 25 40"]
    (raw / "labels.txt").write_text("\n".join(lines) + "\n")
    (folder / "activity_labels.txt").write_text("1 WALKING\n2 SITTING\n3 LAYING\n")
    (folder / "subject_id_train.txt").write_text("1\n")
    (folder / "subject_id_test.txt").write_text("2\n4\n9\n10\n12\n13\n18\n20\n24\n")
    return folder


def write_mobiact(folder: Path, raw: bool = False, subjects: int = 67) -> Path:
    draw = np.random.RandomState(0)
    for subject in range(1, subjects + 1):
        for activity in ("WAL", "JOG"):
            steps = 8 + subject % 5
            if raw:
                place = folder / "Raw Data" / activity
                place.mkdir(parents=True, exist_ok=True)
                for sensor, rate in (("acc", 10), ("gyro", 5), ("ori", 10)):
                    count = steps * 10 // rate
                    rows = "".join(
                        f"{1_000 + rate * k},{','.join(f'{v:.5f}' for v in draw.randn(3))}\n" for k in range(count)
                    )
                    text = f"#Activity: {activity}\n#Subject ID: {subject}\n@DATA\n{rows}"
                    (place / f"{activity}_{sensor}_{subject}_1.txt").write_text(text)
            else:
                place = folder / "Annotated Data" / activity
                place.mkdir(parents=True, exist_ok=True)
                header = "timestamp,rel_time,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,azimuth,pitch,roll,label\n"
                rows = "".join(
                    f"{k},{k / 100},{','.join(f'{v:.5f}' for v in draw.randn(9))},{activity}\n" for k in range(steps)
                )
                (place / f"{activity}_{subject}_1_annotated.csv").write_text(header + rows)
    return folder


def write_jigsaws(folder: Path) -> Path:
    """Three users with two trials each of 80 frames, of which 11 to 70 have a gesture."""
    draw = np.random.RandomState(0)
    for user in "BCD":
        for trial in ("001", "003"):
            kinematics = folder / f"Suturing/kinematics/AllGestures/Suturing_{user}{trial}.txt"
            labels = folder / f"Suturing/transcriptions/Suturing_{user}{trial}.txt"
            for place in (kinematics, labels):
                place.parent.mkdir(parents=True, exist_ok=True)
            rows = draw.randn(80, 76)
            kinematics.write_text("".join("    ".join(f"{v:.6f}" for v in row) + "\n" for row in rows))
            labels.write_text("11 40 G1 \n41 70 G8 \n")
    (folder / "Suturing/kinematics/AllGestures/Suturing_H002.txt").write_text("never labelled\n")
    return folder


def write_gesture_phase(folder: Path) -> Path:
    """Seven recordings of three users, with a mark in front of one file and one label in Portuguese, as published."""
    draw = np.random.RandomState(0)
    folder.mkdir(parents=True)
    points = [f"{place}{axis}" for place in ("lh", "rh", "h", "s", "lw", "rw") for axis in "xyz"]
    phases = ["Rest", "Preparação", "Stroke", "Hold", "Retraction", "Preparation"]
    for name in ("a1", "a2", "a3", "b1", "b3", "c1", "c3"):
        rows = [[f"{v:.5f}" for v in draw.randn(18)] + [str(5_000 + 30 * k), phases[k // 5 % 6]] for k in range(40)]
        text = "\n".join(",".join(row) for row in [[*points, "timestamp", "phase"], *rows]) + "\n"
        (folder / f"{name}_raw.csv").write_text(("\ufeff" if name == "b1" else "") + text)
        (folder / f"{name}_va3.csv").write_text("other\n")
    return folder


def shorten(file: Path, rows: int) -> None:
    """Leave so many rows of a CSV file, and its header."""
    file.write_text("\n".join(file.read_text().splitlines()[: rows + 1]) + "\n")


def write_standard(folder: Path) -> Path:
    draw = np.random.RandomState(0)
    folder.mkdir(parents=True)
    for user in ("u1", "u2", "u3"):
        for trial in (1, 2):
            rows = "".join(f"{draw.randn():.4f},{draw.randn():.4f},{'knot' if k < 9 else 'throw'}\n" for k in range(20))
            (folder / f"{user}_{trial}.csv").write_text("x,y,label\n" + rows)
    return folder
