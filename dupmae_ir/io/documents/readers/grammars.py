"""The programming languages that are read by their grammars: which nodes of a syntax tree are definitions.

Names of nodes are those of the tree-sitter grammar in the named package. To add a language, add its package to
setup.cfg, its grammar here and its endings to the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Grammar(NamedTuple):
    """A language.

    ``function`` of ``package`` returns the grammar. ``classes`` are the definitions that others are in, such as classes
    and modules; ``functions`` are those that are read as one, such as functions and records. ``assigned`` are nodes
    that define a name if their value is a function or, at the top of a file, has several lines: node -> fields of the
    name and of the value.
    """

    package: str
    classes: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    assigned: Mapping[str, tuple[str, str]] = {}
    function: str = "language"


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_ECMASCRIPT_CLASSES = _names("class_declaration abstract_class_declaration internal_module module")
_ECMASCRIPT_FUNCTIONS = _names(
    "function_declaration generator_function_declaration method_definition function_signature "
    "abstract_method_signature interface_declaration enum_declaration type_alias_declaration"
)
_ECMASCRIPT_ASSIGNED = {
    "variable_declarator": ("name", "value"),
    "assignment_expression": ("left", "right"),
    "pair": ("key", "value"),
    "field_definition": ("property", "value"),
    "public_field_definition": ("name", "value"),
}
_C_FUNCTIONS = _names(
    "function_definition struct_specifier union_specifier enum_specifier type_definition preproc_function_def"
)


def _ecmascript(package: str, function: str) -> Grammar:
    return Grammar(
        package, _ECMASCRIPT_CLASSES, _ECMASCRIPT_FUNCTIONS, _ECMASCRIPT_ASSIGNED, function
    )


GRAMMARS = {
    "python": Grammar(
        "tree_sitter_python",
        _names("class_definition"),
        _names("function_definition"),
        {"assignment": ("left", "right")},
    ),
    "javascript": _ecmascript("tree_sitter_javascript", "language"),
    "typescript": _ecmascript("tree_sitter_typescript", "language_typescript"),
    "tsx": _ecmascript("tree_sitter_typescript", "language_tsx"),
    "java": Grammar(
        "tree_sitter_java",
        _names(
            "class_declaration interface_declaration enum_declaration record_declaration annotation_type_declaration"
        ),
        _names("method_declaration constructor_declaration compact_constructor_declaration"),
    ),
    "c": Grammar("tree_sitter_c", functions=_C_FUNCTIONS),
    "cpp": Grammar(
        "tree_sitter_cpp",
        _names("class_specifier struct_specifier"),
        _C_FUNCTIONS - {"struct_specifier"} | _names("alias_declaration concept_definition"),
    ),
    "csharp": Grammar(
        "tree_sitter_c_sharp",
        _names(
            "class_declaration struct_declaration interface_declaration record_declaration record_struct_declaration"
        ),
        _names(
            "method_declaration constructor_declaration destructor_declaration property_declaration "
            "enum_declaration delegate_declaration event_declaration"
        ),
    ),
    "go": Grammar(
        "tree_sitter_go",
        functions=_names("function_declaration method_declaration type_spec"),
        assigned={"var_spec": ("name", "value"), "const_spec": ("name", "value")},
    ),
    "rust": Grammar(
        "tree_sitter_rust",
        _names("impl_item trait_item mod_item"),
        _names("function_item struct_item enum_item union_item macro_definition"),
        {"const_item": ("name", "value"), "static_item": ("name", "value")},
    ),
    "ruby": Grammar("tree_sitter_ruby", _names("class module"), _names("method singleton_method")),
    "php": Grammar(
        "tree_sitter_php",
        _names("class_declaration interface_declaration trait_declaration enum_declaration"),
        _names("function_definition method_declaration"),
        function="language_php",
    ),
    "bash": Grammar("tree_sitter_bash", functions=_names("function_definition")),
    "scala": Grammar(
        "tree_sitter_scala",
        _names(
            "class_definition object_definition trait_definition enum_definition package_object"
        ),
        _names("function_definition function_declaration type_definition"),
    ),
    "kotlin": Grammar(
        "tree_sitter_kotlin",
        _names("class_declaration object_declaration"),
        _names("function_declaration type_alias"),
    ),
    "swift": Grammar(
        "tree_sitter_swift",
        _names("class_declaration protocol_declaration"),
        _names(
            "function_declaration protocol_function_declaration init_declaration subscript_declaration "
            "typealias_declaration"
        ),
    ),
    "lua": Grammar("tree_sitter_lua", functions=_names("function_declaration")),
    "perl": Grammar(
        "tree_sitter_perl",
        functions=_names("subroutine_declaration_statement method_declaration_statement"),
    ),
    "haskell": Grammar(
        "tree_sitter_haskell",
        functions=_names("signature function bind data_type newtype type_synomym class instance"),
    ),
    "objc": Grammar(
        "tree_sitter_objc",
        _names("class_interface class_implementation protocol_declaration"),
        _C_FUNCTIONS | _names("method_definition method_declaration"),
    ),
    "dart": Grammar(
        "tree_sitter_dart",
        _names("class_definition extension_declaration mixin_declaration"),
        _names(
            "function_signature getter_signature setter_signature constructor_signature enum_declaration type_alias"
        ),
    ),
}
"""Language, as metadata have it in ``type`` -> its grammar."""
