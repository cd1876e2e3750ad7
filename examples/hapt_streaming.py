# %% [markdown]
# # From raw sensor files to a streaming classifier
#
# HAPT: 30 people carried a smartphone at the waist. Acceleration and rotation were recorded 50 times a second. Segments of the
# recordings are labelled with one of 12 activities and changes of posture (Reyes-Ortiz et al., Neurocomputing 171, 2016).
#
#     python examples/hapt_streaming.py HAPT.zip --out hapt
#
# The script reads the archive (or a folder with the same files), trains, tests on people outside of the training data, and
# streams. About 3 minutes on 2 CPU cores. Needs `pip install '.[estimators]'`.

# %%
import argparse
import io
import re
import time
import zipfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay, classification_report

from mistrnn import FrameLabeler, SequenceClassifier

parser = argparse.ArgumentParser(description="HAPT: from raw files to a streaming classifier")
parser.add_argument("data", type=Path, help="HAPT.zip, or the folder that it unpacks to")
parser.add_argument("--out", type=Path, default=Path("hapt"), help="where the model and the pictures go")
parser.add_argument("--epochs", type=int, default=None, help="passes over the cases (default: the estimators' own)")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
started = time.monotonic()

EVERY = 5  # 50 Hz are reduced to 10 Hz; each sample is the mean of 5
HERTZ = 50 // EVERY

# %% [markdown]
# ## The raw files
#
# `RawData/acc_exp01_user01.txt` and `gyro_…` hold three numbers per line. `RawData/labels.txt` gives the activity of each
# segment, by recording and sample numbers. `subject_id_test.txt` names the people of the test set.

# %%
if options.data.is_dir():
    files = {path.relative_to(options.data).as_posix(): path.read_text for path in options.data.rglob("*.txt")}
else:
    archive = zipfile.ZipFile(options.data)
    files = {
        name: (lambda name=name: archive.read(name).decode()) for name in archive.namelist() if name.endswith("txt")
    }
root = next(name for name in files if name.endswith("activity_labels.txt")).removesuffix("activity_labels.txt")


def numbers(name):
    return np.loadtxt(io.StringIO(files[root + name]()), ndmin=2)


activities = dict(line.split() for line in files[root + "activity_labels.txt"]().splitlines() if line.strip())
recordings = {}
for name in files:
    if match := re.fullmatch(re.escape(root) + r"RawData/acc_(exp(\d+)_user(\d+))\.txt", name):
        both = np.hstack([numbers(f"RawData/{sensor}_{match[1]}.txt") for sensor in ("acc", "gyro")])
        recordings[int(match[2]), int(match[3])] = both
print(f"{len(recordings)} recordings of {len({user for _, user in recordings})} people")

# %% [markdown]
# ## Cases
#
# Each labelled segment is one case: an array [channels, time] of the segment's own length. No padding or cutting is needed.

# %%
cases, labels, people = [], [], []
for experiment, user, activity, first, last in numbers("RawData/labels.txt").astype(int):
    segment = recordings[experiment, user][first - 1 : last]
    steps = len(segment) // EVERY
    if steps:
        cases.append(segment[: steps * EVERY].reshape(steps, EVERY, -1).mean(1).T)
        labels.append(activities[str(activity)].replace("_", " ").lower())
        people.append(user)
labels, people = np.array(labels), np.array(people)
tested = np.isin(people, numbers("subject_id_test.txt").astype(int))
train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
lengths = [case.shape[1] for case in cases]
print(f"{len(train)} segments to train on, {len(test)} of other people to test on")
print(
    f"{min(lengths)} to {max(lengths)} steps of {1000 // HERTZ} ms, {cases[0].shape[0]} channels, {len(set(labels))} classes"
)

# %% [markdown]
# ## Training
#
# Changes of posture are rare, so all classes get the same total weight.

# %%
model = SequenceClassifier(class_weight="balanced", max_epochs=options.epochs, random_state=0, verbose=True)
model.fit([cases[k] for k in train], labels[train])
print(model.network_.networks[0].recurrent_layers()[0])
print(f"{model.parameter_count():,} parameters, {model.n_epochs_} epochs")

# %% [markdown]
# ## Test on people outside of the training data

# %%
test_cases = [cases[k] for k in test]
found = model.predict(test_cases)
print(classification_report(labels[test], found, zero_division=0))

figure = Figure(figsize=(8, 7), layout="constrained")
axes = figure.subplots()
ConfusionMatrixDisplay.from_predictions(
    labels[test], found, ax=axes, normalize="true", values_format=".0%", cmap="cividis", xticks_rotation="vertical",
    text_kw={"fontsize": 7},
)  # fmt: skip
axes.set_title(f"Test segments of {len(set(people[test]))} new people: accuracy {(found == labels[test]).mean():.1%}")
figure.savefig(options.out / "confusion.png", dpi=120)

# %% [markdown]
# ## Accuracy against time
#
# The same classifier also predicts at each step, as if the segment ended there. The curve shows the accuracy after t seconds,
# among segments of at least t seconds. It starts low: changes of posture are short, and the classifier predicts one for every
# short segment. The next section trains a model for a label at every step.

# %%
at_every_step = model.predict_proba_at_every_step(test_cases)
right = [model.classes_[chances.argmax(1)] == label for chances, label in zip(at_every_step, labels[test], strict=True)]
longest = int(np.quantile([len(case) for case in right], 0.75))
shares = [np.mean([case[t] for case in right if len(case) > t]) for t in range(longest)]

figure = Figure(figsize=(9, 3.2), layout="constrained")
axes = figure.subplots()
axes.plot((np.arange(longest) + 1) / HERTZ, shares, color="#0072B2")
axes.set(xlabel="seconds listened", ylabel="accuracy", ylim=(0, 1), title="One label for each segment")
axes.grid(color="0.92")
figure.savefig(options.out / "listening.png", dpi=120)

# %% [markdown]
# ## A label for every moment
#
# `FrameLabeler` trains on whole recordings with a label for each row; unlabelled rows are None. Training uses pieces of 30
# seconds; prediction uses whole recordings.

# %%
wholes, rows, owners = [], [], []
segments = numbers("RawData/labels.txt").astype(int)
for (experiment, user), recording in sorted(recordings.items()):
    steps = len(recording) // EVERY
    row = np.full(steps, None, dtype=object)
    for _, _, activity, first, last in segments[(segments[:, 0] == experiment) & (segments[:, 1] == user)]:
        row[(first - 1) // EVERY : last // EVERY] = activities[str(activity)].replace("_", " ").lower()
    wholes.append(recording[: steps * EVERY].reshape(steps, EVERY, -1).mean(1).T)
    rows.append(row)
    owners.append(user)
held_out = np.isin(owners, people[test])
labeler = FrameLabeler(piece_length=30 * HERTZ, max_epochs=options.epochs, random_state=0, verbose=True)
known = [k for k in range(len(wholes)) if not held_out[k]]
labeler.fit([wholes[k] for k in known], [rows[k] for k in known])
unseen = [k for k in range(len(wholes)) if held_out[k]]
frames_right = labeler.score([wholes[k] for k in unseen], [rows[k] for k in unseen])
print(f"accuracy {frames_right:.1%} on the labelled rows of {len(unseen)} whole recordings of new people")

# %% [markdown]
# ## Streaming
#
# A stream takes one row of measurements at a time, in constant time and memory per row. Its labels equal those of `predict` on
# the whole recording.

# %%
recording, truth = wholes[unseen[0]], rows[unseen[0]]
live, said, durations = labeler.stream(), [], []
for row in recording.T:
    began = time.perf_counter()
    said.append(live(row).label)
    durations.append(time.perf_counter() - began)
same = np.mean(np.array(said) == labeler.predict([recording])[0])
print(f"{len(said):,} rows, {np.median(durations) * 1e6:.0f} microseconds each; {same:.1%} as predict says")

figure = Figure(figsize=(10, 4), layout="constrained")
axes = figure.subplots()
place = {name: k for k, name in enumerate(labeler.classes_)}
seconds = np.arange(len(said)) / HERTZ
there = np.array([label is not None for label in truth])
axes.scatter(seconds[there], [place[label] for label in truth[there]], s=30, marker="s", linewidth=0, label="true")
axes.scatter(seconds, [place[label] for label in said], s=5, linewidth=0, color="#D55E00", label="streamed")
axes.set_yticks(range(len(place)), labeler.classes_)
axes.set(
    xlabel="seconds",
    title=f"A recording of a person who is not in the training data; accuracy on all of them {frames_right:.1%}",
)
axes.grid(axis="y", color="0.92")
figure.legend(frameon=False, loc="outside right upper")
figure.savefig(options.out / "streamed.png", dpi=120)

# %% [markdown]
# ## Saving the models
#
# Weights are stored as safetensors, everything else as JSON. `mist stream hapt/labeler` reads rows from a pipe, and `mist
# export hapt/labeler --onnx hapt.onnx --step` writes a graph for a device.

# %%
model.save_pretrained(options.out / "classifier", force=True)
labeler.save_pretrained(options.out / "labeler", force=True)
again = FrameLabeler.from_pretrained(options.out / "labeler")
assert (again.predict([recording])[0] == labeler.predict([recording])[0]).all()
print(f"models and pictures in {options.out}, {time.monotonic() - started:.0f} s in all")
