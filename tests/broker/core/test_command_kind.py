"""What a command runs, whatever it is told: the kind of a job, by which it is packed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.api.job_commands import by_shell
from gpulease.broker.core.shapes import kind_of

PROGRAMS = {
    "./use2.sh": "/home/use2.sh",
    "use2": "use2",
    "python3 use.py": "python3 /home/use.py",
    "python -W ignore -u train": "python /home/train",
    "python3.11 -m pkg.train": "python3.11 /home/pkg.train",
    "bash -o pipefail use.sh": "bash /home/use.sh",
    "sh use.sh": "sh /home/use.sh",
    "julia --project=. -t 4 fit.jl": "julia /home/fit.jl",
    "Rscript fit.R": "Rscript /home/fit.R",
    "torchrun --nproc_per_node 4 --rdzv_backend c10d train.py": "torchrun /home/train.py",
    "torchrun --standalone -m pkg.train": "torchrun pkg.train",
    "python -m torch.distributed.run --nproc_per_node 2 train.py": "python /home/train.py",
    "accelerate launch --config_file conf/a.yaml train.py": "accelerate /home/train.py",
    "env A=1 B=x python3 use.py": "env python3 /home/use.py",
    "env -u A ./use2": "env /home/use2",
    "timeout 10m nice -n 5 ./use2": "timeout nice /home/use2",
    "uv run --with torch python use.py": "uv python /home/use.py",
    "conda run -n fast python use.py": "conda python /home/use.py",
    "apptainer exec --nv a.sif python use.py": "apptainer python /home/use.py",
}
TEXTS = {
    "python3 use.py --lr {} 2>&1 | cat": "sh python3 /home/use.py",
    "A={} ./use2 > out{}": "sh /home/use2",
    "cd run{} && mkdir -p out; python ../use.py --lr {}": "sh python /home/use.py",
    ". venv/bin/activate && conda activate x && exec python use.py {}": "sh python /home/use.py",
    "for i in 1 {}; do env B={} python use.py $i; done": "sh env python /home/use.py",
}
values = st.sampled_from(["1", "0.1", "-3", "1e-4", "adam", "--lr", "--lr=2", "-v", "a/b", "./data", "x.csv", "config"])


def kind(words: list[str]) -> str:
    return " ".join(kind_of(words, "/home"))


@pytest.mark.parametrize(("command", "wanted"), PROGRAMS.items())
@settings(max_examples=20)
@given(told=st.lists(values, max_size=4))
def test_values_and_options_behind_a_program_do_not_count(command: str, wanted: str, told: list[str]) -> None:
    assert kind([*command.split(), *told]) == wanted


@pytest.mark.parametrize(("text", "wanted"), TEXTS.items())
@settings(max_examples=20)
@given(told=st.sampled_from(["1", "0.5", "adam"]))
def test_a_text_for_a_shell_is_the_command_that_it_runs(text: str, wanted: str, told: str) -> None:
    assert kind(by_shell(text.replace("{}", told))) == wanted


def test_what_runs_something_else_is_of_another_kind() -> None:
    commands = ["./a", "./b", "a", "python a.py", "python b.py", "env python a.py", "python -m a", "torchrun b.py"]
    shells = [by_shell(text) for text in ("python a.py", "python b.py", "cd other; python a.py", "./a", "cd x")]
    assert len({kind(words) for words in [*map(str.split, commands), *shells]}) == len(commands) + len(shells)
    assert kind_of(["./a"], "/home") != kind_of(["./a"], "/tmp")


@given(
    st.lists(st.sampled_from(["env", "sh", "-c", "env sh -c env", "python", "-m", "", "cd", "=", "(", "|"]), min_size=1)
)
def test_any_command_has_a_kind(words: list[str]) -> None:
    assert kind_of(words, "/home")
