"""All commands with the modules that hold them, for a `mist --help` that imports none of these."""

PANELS = {
    "models": "Models of your own recordings",
    "studies": "Studies",
    "analysis": "Analysis",
    "paper": "The paper",
    "records": "The paper",
}
"""The panel of `mist --help` by module."""

COMMANDS = {
    # group: command: module and summary, the first line of the command's docstring
    "mist": {
        "fit": ("models", "Train a model on recordings, and report its accuracy on recordings that are held out."),
        "tune": (
            "models",
            "As fit, with a search: many trials of random settings; the model is the mean of the best ones.",
        ),
        "predict": ("models", "Write the predictions of a model for recordings into a CSV file."),
        "evaluate": ("models", "Report the accuracy of a model on other labelled recordings."),
        "stream": ("models", "Read rows from standard input, and write a label and its probability after each row."),
        "export": ("models", "Write a model as an ONNX graph."),
        "tasks": ("studies", "List the tasks and their settings."),
        "layers": ("studies", "List the layers, or with --cost what a step of each costs."),
        "train": ("studies", "Train one model with one learning rate: a study of one trial."),
        "sweep": (
            "studies",
            "Train many trials with random learning rates as one computation, and report the top 10% by validation.",
        ),
        "demo": (
            "studies",
            "Compare MIST, LSTM, RNN and Clockwork on a copy problem: a few trials each, minutes on 2 CPU cores.",
        ),
        "gradients": (
            "analysis",
            "Show how much of the last step's gradient arrives tau steps before it, untrained and in training.",
        ),
        "attention": (
            "analysis",
            "Show which past a trained MIST layer uses: its weights over delays, over time and over examples.",
        ),
        "paths": (
            "analysis",
            "Show the shortest path over tau steps, and how many paths there are, for a set of delays.",
        ),
        "report": (
            "paper",
            "Write one HTML page about any set of studies: tables, curves, learning rates, gradient norms, paths.",
        ),
        "keep": (
            "records",
            "Copy a study as a small record: settings, trials, curves, and the parameters of its top trials.",
        ),
        "verify": (
            "records",
            "Compute every marked number of README, docs and results again from the records, and test kept models again.",
        ),
    },
    "data": {
        "timit": ("studies", "Prepare TIMIT, or the sample of it that comes with NLTK."),
        "mobiact": ("studies", "Prepare MobiAct v2.0."),
        "surgical": (
            "studies",
            "Prepare JIGSAWS (Suturing), recordings in the standard form (MISTIC-SL), or Gesture Phase Segmentation.",
        ),
        "hapt": ("studies", "Prepare HAPT: labelled segments, or whole recordings."),
        "mnist": ("studies", "Get the four files of MNIST, or check those that are there."),
    },
    "reproduce": {
        "table1": (
            "paper",
            "Run the rows of table 1 (permuted MNIST) under the paper's protocol, and print ours beside published.",
        ),
        "table2": (
            "table2",
            "Run table 2 (MISTIC-SL), or with --stand-in JIGSAWS or Gesture Phase Segmentation, one user held out at a time.",
        ),
        "table3": ("paper", "Run the rows of table 3 (TIMIT), or with --stand-in the same on NLTK's sample of TIMIT."),
        "table4": (
            "paper",
            "Run the rows of table 4 (MobiAct), or with --stand-in layers of as many parameters on HAPT.",
        ),
        "beyond": (
            "beyond",
            "Run MIST and LSTM with zoneout, recurrent dropout, layer norm and other delays, beside the same layers without.",
        ),
        "figure1": ("paper", "Draw direct connections and shortest paths in four architectures."),
        "figure2": (
            "paper",
            "Measure gradient norms against tau early in training on permuted MNIST.",
        ),
        "figure3": (
            "paper",
            "Run the copy problem of figure 3 under the paper's protocol, and print who solves it beside the paper.",
        ),
    },
}
