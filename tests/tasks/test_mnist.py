"""MNIST: its files, their failures, and the paper's preprocessing."""

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import _mnist_files, make_task
from tests.tasks.idx_files import idx, write_mnist

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_mnist(tmp_path / "mnist")


def test_images_are_standardised_one_by_one_and_split_in_order(folder: Path) -> None:
    task = make_task("smnist", data=folder)
    assert task.sizes == {"train": 54, "val": 6, "test": 20}
    inputs, labels = task.batch("val", torch.arange(6))
    raw = gzip.decompress((folder / IMAGES).read_bytes())[16:]
    image = np.frombuffer(raw, dtype=np.uint8).reshape(60, 784)[54].astype(np.float64)
    expected = (image - image.mean()) / image.std()
    torch.testing.assert_close(inputs[:, 0, 0], torch.from_numpy(expected).float())
    assert labels[0] == gzip.decompress((folder / LABELS).read_bytes())[8 + 54]


def test_official_sizes_split_as_in_the_paper(tmp_path: Path) -> None:
    images = torch.zeros(60_000, 28, 28, dtype=torch.uint8)
    images[:, 0, 0] = 1
    write_mnist(tmp_path)
    (tmp_path / IMAGES).write_bytes(gzip.compress(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
                                                  + images.numpy().tobytes(), 1))  # fmt: skip
    (tmp_path / LABELS).write_bytes(idx(torch.zeros(60_000, dtype=torch.uint8)))
    task = make_task("smnist", data=tmp_path)
    assert task.sizes["train"] == 58_000
    assert task.sizes["val"] == 2_000


def test_permutation_is_numpys_and_the_last_pixels_are_its_end(folder: Path) -> None:
    order = torch.from_numpy(np.random.RandomState(0).permutation(784))
    index = torch.arange(5)
    plain = make_task("smnist", data=folder).batch("test", index)[0]
    assert torch.equal(make_task("pmnist", data=folder).batch("test", index)[0], plain[order])
    short = make_task("pmnist", {"last_pixels": 200}, data=folder)
    assert short.steps == 200
    assert torch.equal(short.batch("test", index)[0], plain[order[-200:]])


@pytest.mark.parametrize("pixels", [0, -1, 785])
def test_impossible_last_pixels_are_refused(folder: Path, pixels: int) -> None:
    with pytest.raises(UsageError, match=f"^pmnist: expected last_pixels between 1 and 784, got {pixels}.$"):
        make_task("pmnist", {"last_pixels": pixels}, data=folder)


def test_missing_files_are_named_with_the_command_that_gets_them(folder: Path) -> None:
    (folder / LABELS).unlink()
    with pytest.raises(UsageError, match=f"{LABELS} missing. Get it with: mist data mnist --dir {folder}"):
        make_task("smnist", data=folder)


def test_truncated_file_is_named(folder: Path) -> None:
    path = folder / IMAGES
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match=f"{IMAGES}: truncated or corrupted"):
        make_task("smnist", data=folder)


def test_corrupted_file_is_named(folder: Path) -> None:
    path = folder / IMAGES
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(UsageError, match=f"{IMAGES}: truncated or corrupted"):
        make_task("smnist", data=folder)


def test_file_that_stops_early_inside_is_named(folder: Path) -> None:
    path = folder / IMAGES
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(UsageError, match=rf"{IMAGES}: expected 47056 bytes for sizes \[60, 28, 28\], got 47055"):
        make_task("smnist", data=folder)


def test_images_and_labels_exchanged_are_noticed(folder: Path) -> None:
    images, labels = (folder / IMAGES).read_bytes(), (folder / LABELS).read_bytes()
    (folder / IMAGES).write_bytes(labels)
    (folder / LABELS).write_bytes(images)
    with pytest.raises(UsageError, match=f"{IMAGES}: expected an IDX file of images .*Are images and labels exchanged"):
        make_task("smnist", data=folder)


def test_train_and_test_exchanged_are_noticed(folder: Path) -> None:
    for kind in ("images-idx3", "labels-idx1"):
        train, test = folder / f"train-{kind}-ubyte.gz", folder / f"t10k-{kind}-ubyte.gz"
        contents = train.read_bytes(), test.read_bytes()
        train.write_bytes(contents[1])
        test.write_bytes(contents[0])
    with pytest.raises(UsageError, match="Are the train and t10k files exchanged"):
        make_task("smnist", data=folder)


def test_labels_of_another_set_are_noticed(folder: Path) -> None:
    (folder / LABELS).write_bytes((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(UsageError, match=f"{LABELS}: expected 60 labels, one for each image, got 20"):
        make_task("smnist", data=folder)


def test_labels_beyond_nine_are_noticed(folder: Path) -> None:
    (folder / LABELS).write_bytes(idx(torch.full((60,), 12, dtype=torch.uint8)))
    with pytest.raises(UsageError, match=f"{LABELS}: expected labels 0 to 9, got 12"):
        make_task("smnist", data=folder)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def checksums(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _mnist_files.CHECKSUMS}


def test_download_gets_the_four_files_once(folder: Path, mirror: str, tmp_path: Path) -> None:
    target, lines = tmp_path / "new" / "place", []
    _mnist_files.get(target, [mirror], checksums(folder), lines.append)
    assert sorted(path.name for path in target.iterdir()) == sorted(_mnist_files.CHECKSUMS)
    assert all("downloaded" in line for line in lines)
    lines.clear()
    _mnist_files.get(target, ["http://127.0.0.1:9/"], checksums(folder), lines.append)  # nothing to download any more
    assert all("checksum right" in line and "downloaded" not in line for line in lines)


def test_download_goes_on_to_the_next_mirror(folder: Path, mirror: str, tmp_path: Path) -> None:
    _mnist_files.get(tmp_path / "new", ["http://127.0.0.1:9/", mirror], checksums(folder))
    assert len(list((tmp_path / "new").iterdir())) == 4


def test_download_with_a_wrong_checksum_leaves_nothing(folder: Path, mirror: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"(?s)could not get {IMAGES}:.*expected SHA-256 440fcabf73cc…, got"):
        _mnist_files.get(tmp_path / "new", [mirror])
    assert list((tmp_path / "new").iterdir()) == []


def test_unreachable_mirror_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)could not get .*http://127.0.0.1:9/.*refused.*by other means"):
        _mnist_files.get(tmp_path / "new", ["http://127.0.0.1:9/"])


def test_wrong_file_that_is_there_is_named_and_kept(folder: Path) -> None:
    before = (folder / IMAGES).read_bytes()
    with pytest.raises(UsageError, match=f"{IMAGES}: expected SHA-256 440fcabf73cc…, got .* remove it"):
        _mnist_files.get(folder)
    assert (folder / IMAGES).read_bytes() == before


def test_mirror_that_is_no_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)could not get .*notaurl/train-images.*unknown url type"):
        _mnist_files.get(tmp_path / "new", ["notaurl"])


def test_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / IMAGES).mkdir()
    with pytest.raises(UsageError, match=f"{IMAGES}: Is a directory"):
        _mnist_files.get(tmp_path)


def test_file_without_images_is_named(folder: Path) -> None:
    (folder / IMAGES).write_bytes(idx(torch.zeros(0, 28, 28, dtype=torch.uint8)))
    with pytest.raises(UsageError, match=rf"{IMAGES}: expected something in it, got sizes \[0, 28, 28\]"):
        make_task("smnist", data=folder)


def test_too_few_images_to_validate_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="smnist: expected at least 10 training images, to validate on a tenth, got 9"):
        make_task("smnist", data=write_mnist(tmp_path, train=9, test=3))


def test_files_are_told_apart_and_from_the_published_ones(folder: Path, tmp_path: Path) -> None:
    task, other = make_task("smnist", data=folder), make_task("smnist", data=write_mnist(tmp_path / "other", seed=1))
    assert task.data_note == "The files are not the published MNIST."
    assert task.data_identity == make_task("pmnist", data=folder).data_identity != other.data_identity


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot use the folder .*file/inside"):
        _mnist_files.get(tmp_path / "file" / "inside")
