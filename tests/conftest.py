"""What the tests of all folders share: loops that count, and calls that must be refused."""

import contextlib
import copy

import pytest


@pytest.fixture
def ran(record_property):
    """ran(cases, name): the cases, of which there must be some; the report has their number."""

    def count(cases, name="cases"):
        cases = list(cases)
        assert cases, f"there are no {name}"
        record_property(name, len(cases))
        return cases

    return count


@pytest.fixture(scope="session")
def refused():
    """refused(exception, argument, message, *arrays): a context whose call raises that exception,
    which names the argument and has that in its message, and writes to none of the arrays."""

    @contextlib.contextmanager
    def expect(exception, argument, message, *arrays):
        before = [copy.deepcopy(array) for array in arrays]
        with pytest.raises(exception) as raised:
            yield raised
        assert raised.value.argument == argument
        assert message in str(raised.value)
        for array, untouched in zip(arrays, before, strict=True):
            equal = array == untouched
            assert equal if isinstance(equal, bool) else equal.all()

    return expect
