# SPDX-License-Identifier: MIT
"""Each public module has a stub (.pyi) with the names of its __all__, their parameters, and the public members of its
classes, and nothing that is gone. A stub is Python, so it is run, and its functions are compared with the module's."""
import __future__
import importlib
import inspect
import os
import pkgutil
import unittest

import boxcar


def run_stub(module):
    """The names of a module's stub; None: it has none."""
    path = os.path.splitext(module.__file__)[0] + ".pyi"
    if not os.path.exists(path):
        return None
    names = {"__name__": f"stub of {module.__name__}", "__package__": module.__package__}
    with open(path) as file:
        exec(compile(file.read(), path, "exec", __future__.annotations.compiler_flag), names)
    return names


def parameters(function):
    """As text: names, kinds, and which may be left out."""
    try:
        signature = inspect.signature(function)
    except ValueError:                      # an exception without a constructor of its own
        return "(...)"
    return str(inspect.Signature([p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...)
                                  for p in signature.parameters.values()])).replace("=Ellipsis", "=...")


def differences(name, real, stub):
    if callable(real) and parameters(real) != parameters(stub):
        yield f"{name}{parameters(stub)} is {name}{parameters(real)} now"
    if inspect.isclass(real):
        for member in vars(real):
            if not member.startswith("_"):
                if hasattr(stub, member):
                    yield from differences(f"{name}.{member}", getattr(real, member), getattr(stub, member))
                else:
                    yield f"{name}.{member} is missing"
        yield from (f"{name}.{member} is no more" for member in vars(stub)
                    if not member.startswith("_") and not hasattr(real, member))


def compare(module):
    stub = run_stub(module)
    if stub is None:
        return ["there is no stub"]
    found = []
    for name in module.__all__:
        real = getattr(module, name)
        if name not in stub:
            found.append(f"{name}{parameters(real) if callable(real) else ''} is missing")
        else:
            found.extend(differences(name, real, stub[name]))
    return found + [f"{name} is no more" for name, value in stub.items()
                    if getattr(value, "__module__", None) == stub["__name__"] and not name.startswith("_")
                    and not hasattr(module, name)]


def public_modules():
    yield "boxcar"
    for module in pkgutil.walk_packages(boxcar.__path__, "boxcar."):
        if "._" not in module.name:
            yield module.name


class Tests(unittest.TestCase):
    def test_stubs_have_what_the_modules_have(self):
        for name in public_modules():
            with self.subTest(name):
                try:
                    module = importlib.import_module(name)
                except ImportError as error:        # of torch
                    self.skipTest(error)
                found = compare(module)
                if found:
                    self.fail(f"the stub of {name} (lib/python/boxcar/**.pyi) is stale: " + "; ".join(found))

    def test_the_package_says_that_it_has_types(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(boxcar.__file__), "py.typed")))


if __name__ == "__main__":
    unittest.main()
