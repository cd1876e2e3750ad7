"""The flags that describe a study, each declared once; names and defaults are those of `Study`."""

from dataclasses import dataclass, fields
from typing import Any

from mistrnn.cli._flags import (
    Address,
    BatchSize,
    CheckpointSegments,
    CpusPerWorker,
    Delays,
    Device,
    Dropout,
    EngineName,
    Fresh,
    GradientsEvery,
    GroupSize,
    Hidden,
    Initialization,
    LayerName,
    LayerNorm,
    NodeData,
    NumLayers,
    Only,
    OptimizerName,
    Out,
    Periods,
    Precision,
    ReadoutDropout,
    RecurrentDropout,
    Schedule,
    Steps,
    Tensorboard,
    Truncate,
    ValidateEvery,
    WeightDecay,
    Workers,
    Zoneout,
    list_of_numbers,
    numbers,
)
from mistrnn.cli._task_flags import TaskFlags
from mistrnn.errors import UsageError
from mistrnn.training import RayEngine, Study
from mistrnn.training.embedded import Engine

ENGINES = ("embedded", "ray")


@dataclass(frozen=True)
class LayerFlags:
    """A layer and its options."""

    layer: LayerName = "mist"
    hidden: Hidden = 139
    delays: Delays = None
    periods: Periods = None
    num_layers: NumLayers = 1
    layer_norm: LayerNorm = False
    zoneout: Zoneout = 0.0
    recurrent_dropout: RecurrentDropout = 0.0
    dropout: Dropout = 0.0

    def options(self) -> dict[str, Any]:
        """Return the options that are given, as arguments of the layer."""
        chosen: dict[str, Any] = {}
        for name in ("delays", "periods"):
            if (text := getattr(self, name)) is not None:
                chosen[name] = numbers(name, text)
        if self.num_layers != 1:
            chosen["num_layers"] = self.num_layers
        for name in ("layer_norm", "zoneout", "recurrent_dropout", "dropout"):
            if value := getattr(self, name):
                chosen[name] = value
        return chosen


@dataclass(frozen=True)
class TrainingFlags:
    """Optimisation and measurements; each field is the setting of `Study` with the same name."""

    steps: Steps = None
    batch_size: BatchSize = Study.batch_size
    optimizer: OptimizerName = Study.optimizer
    schedule: Schedule = Study.schedule
    weight_decay: WeightDecay = Study.weight_decay
    initialization: Initialization = Study.initialization
    readout_dropout: ReadoutDropout = Study.readout_dropout
    precision: Precision = Study.precision
    truncate: Truncate = None
    checkpoint_segments: CheckpointSegments = None
    validate_every: ValidateEvery = None
    gradients_every: GradientsEvery = None


@dataclass(frozen=True)
class FolderFlags:
    """The study's folder, its log and the device."""

    out: Out
    device: Device = "auto"
    tensorboard: Tensorboard = None
    fresh: Fresh = False


@dataclass(frozen=True)
class GroupFlags:
    """The trials to train now, and how many of them at once."""

    group_size: GroupSize = None
    only: Only = None

    def trials(self) -> list[int] | None:
        """Return the trials to train now, or None for all."""
        return None if self.only is None else list_of_numbers("only", self.only)


@dataclass(frozen=True)
class EngineFlags:
    """The engine that computes; the fields after the first are those of `RayEngine`."""

    engine: EngineName = "embedded"
    address: Address = None
    workers: Workers = None
    cpus_per_worker: CpusPerWorker = 1
    node_data: NodeData = False

    def chosen(self) -> Engine | None:
        """Return the engine, or None for this process."""
        if self.engine not in ENGINES:
            raise UsageError(f"expected --engine among {', '.join(ENGINES)}, got {self.engine!r}.")
        if self.engine == "ray":
            return RayEngine(**{field.name: getattr(self, field.name) for field in fields(RayEngine)})
        for field in fields(RayEngine):
            if getattr(self, field.name) != field.default:
                raise UsageError(f"--{field.name.replace('_', '-')} belongs to --engine ray.")
        return None


def study_from(task: TaskFlags, layer: LayerFlags, training: TrainingFlags, **settings: Any) -> Study:
    """Return the study that the flags describe; `settings` are further settings of `Study`."""
    return Study(
        task=task.task,
        seed=task.seed,
        task_settings=task.settings(),
        layer=layer.layer,
        hidden=layer.hidden,
        layer_options=layer.options(),
        **vars(training),
        **settings,
    )
