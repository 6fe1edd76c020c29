# SPDX-License-Identifier: MIT
"""References to objects of other workers."""
from ._errors import Error
from ._futures import Future, wait_for
from ._messages import Failure, get_ref, put_ref, request, set_apart


def _itself(object):
    return object


def _at(type, index):
    return type(get_ref(index))


class Ref:
    """A reference to an object of a worker, its owner, who keeps the object until no worker refers to it. References
    travel in arguments and results. Uses of one whose object is not made yet wait for it."""

    def __init__(self, engine):
        self._engine = engine

    def _put(self):
        """Its index in the message that is being written."""
        index = put_ref(self._engine)
        if index is None:
            raise TypeError("a reference can only be pickled in an argument or a result of a call")
        return index

    def __reduce__(self):
        return _at, (type(self), self._put())

    @property
    def owner(self):
        """The owner's rank."""
        return self._engine.owner()

    def call_async(self, method, args=(), kwargs=None, timeout=None):
        """Calls a method, by its name, on the object, or a function with the object as its first argument."""
        return Future._of(*self._begin(method, args, kwargs, timeout))

    def call(self, method, args=(), kwargs=None, timeout=None):
        return wait_for(*self._begin(method, args, kwargs, timeout))

    def _begin(self, method, args, kwargs, timeout):
        owner = self._engine.owner()
        try:
            return self._engine.call(*request(owner, method, args, kwargs, timeout)), owner, method
        except Error as error:
            raise error._of(owner, method)

    def local(self):
        """The object itself, for its owner. Raises what its maker raised."""
        object = self._engine.local()
        if isinstance(object, Failure):
            raise object.to_raise("this worker")
        return object

    def get(self, timeout=None):
        """A copy of the object."""
        return self.call(_itself, timeout=timeout)


set_apart(Ref, Ref.__reduce__)
