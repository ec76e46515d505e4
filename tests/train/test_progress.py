"""The progress line of a training."""

from hexane.train.progress import Progress


def test_the_first_batch_of_a_process_is_in_no_mean() -> None:
    """It compiles and allocates. A resumed run had shown ten times its first batch as the time of a step."""
    line = Progress(200, 100, False, of_each=10, tokens=64)
    line.tell({"loss": 5.0, "ms": 50.0})
    assert line.told == "loss 5  first batch of 10 50 ms"
    line.tell({"loss": 3.0, "ms": 2.0})
    assert line.told == "loss 4  20 ms a step  32,000 tokens/s"
    for _ in range(10):
        line.tell({"loss": 3.0, "ms": 4.0})
    assert line.told == "loss 3  40 ms a step  16,000 tokens/s"


def test_a_step_of_one_batch_is_called_a_step() -> None:
    line = Progress(2, 0, False)
    line.tell({"loss": 1.0, "ms": 7.0})
    assert line.told == "loss 1  first step 7 ms"
    line.tell({"loss": 1.0, "ms": 3.0})
    assert line.told == "loss 1  3 ms a step"
