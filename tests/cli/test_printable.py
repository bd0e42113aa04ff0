"""Text that an agent may have written does not reach the terminal as control characters."""

from __future__ import annotations

import pytest

from rollyard.cli import main, printable, progress, rollout_turns
from rollyard.cli.cp import _Progress
from rollyard.cli.output import align
from rollyard.cli.rollout_history import history_lines
from rollyard.cli.snapshot_lines import snapshot_lines
from rollyard.core.errors import RollyardError
from rollyard.kinds.base import Reason
from rollyard.kinds.rollout import RolloutView, Stage
from rollyard.kinds.rollout_history import HistoryEntry, RolloutHistory
from rollyard.kinds.rollout_snapshot import RolloutSnapshot

TITLE = "\x1b]0;pwned\x07x"
SHOWN = "\\x1b]0;pwned\\x07x"


def test_control_characters_are_shown_and_other_text_stays() -> None:
    assert printable.printable(f"{TITLE}\r\x9b31m\x7f\tä漢\n") == f"{SHOWN}\\x0d\\x9b31m\\x7f\tä漢\n"
    assert printable.printable("\udcff\ud83d") == "\\xff\\ud83d"
    assert printable.printable("a\u202etxt.exe\u2066") == "a\\u202etxt.exe\\u2066", "no text is shown backwards"
    assert printable.printable_line(f"a\n\t{TITLE}") == f"a\\n\\t{SHOWN}"


def test_what_a_copy_says_has_no_control_characters() -> None:
    said = _Progress("r:/x to y", shown=False)
    said.complain(f"/x/{TITLE} is left out\n".encode())
    said.note(f"{TITLE}\udcff is left out")
    assert said.complaints == f"/x/{SHOWN} is left out\n{SHOWN}\\xff is left out\n"


def test_tables_show_them_and_stay_aligned() -> None:
    assert align([[TITLE, "a"], ["b\nc", "d"]]) == [f"{SHOWN}   a", f"{'b' + chr(92) + 'nc':<{len(SHOWN)}}   d"]


def test_names_of_files_in_snapshots_and_words_in_histories() -> None:
    one = RolloutSnapshot(turn=1, files=1, size=1, archive_bytes=1, left_out=[f"/{TITLE}\nfake"], left_out_count=1)
    lines = snapshot_lines([one])
    assert len(lines) == 2
    assert lines[1].endswith(f"/{SHOWN}\\nfake")
    entry = HistoryEntry(at=1.0, event="Exec", attempt=1, stage=Stage.RUN, reason="by a", message=f"echo {TITLE}")
    lines = history_lines(RolloutHistory(id="r", namespace="default", entries=[entry], dropped=0, kept_first=0))
    assert lines[1].endswith(f"by a: echo {SHOWN}")


def test_errors_and_states_and_turns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RollyardError(f"{TITLE} exists")

    monkeypatch.setattr(main, "cli", fail)
    with pytest.raises(SystemExit):
        main.main()
    assert capsys.readouterr().err == f"error: {SHOWN} exists\n"
    view = RolloutView.model_construct(id="r", status=Stage.RUN, stage=None, waiting=Reason("Waits", TITLE))
    assert SHOWN in progress.state_line(view)
    rollout_turns._echo([TITLE])
    assert capsys.readouterr().out == f"{SHOWN}\n"
