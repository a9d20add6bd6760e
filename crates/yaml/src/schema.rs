//! The JSON Schemas of shapes and values, by which the schemas of the files are derived.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::shapes::{Entries, Filled, Note, OneOrMany, Required, Spanned, WordOr};
use super::values::{
    ByteSize, FieldName, HumanDuration, MediaType, MethodName, Percent, PositiveDuration,
    PositiveSize, ResponseStatus, SIZE_UNITS, Within,
};
use super::words::{Word, Words};

/// What free keys of a mapping may be.
pub trait KeySchema {
    /// The schema of the keys; none where they may be anything.
    fn key_schema(generator: &mut SchemaGenerator) -> Option<Schema>;
}

impl KeySchema for String {
    fn key_schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
}

impl KeySchema for FieldName {
    fn key_schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<Self>())
    }
}

/// Types whose schema stands wherever they are used.
macro_rules! inline {
    ($([$($generics:tt)*] $type:ty = |$generator:pat_param| $schema:expr;)+) => {$(
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )+};
}

inline! {
    [T: JsonSchema] Spanned<T> = |generator| generator.subschema_for::<T>();
    [T: JsonSchema] Required<T> = |generator| generator.subschema_for::<T>();
    [T: JsonSchema] OneOrMany<T> = |generator| {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one, {"type": "array", "items": one}]})
    };
    [T: JsonSchema] Filled<T> = |generator| {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
    };
    [T: JsonSchema, W: JsonSchema] WordOr<T, W> = |generator| {
        let (word, more) = (generator.subschema_for::<W>(), generator.subschema_for::<T>());
        json_schema!({"anyOf": [word, more]})
    };
    [T: JsonSchema, K: KeySchema] Entries<T, K> = |generator| {
        let names = K::key_schema(generator);
        let value = generator.subschema_for::<T>();
        match names {
            None => json_schema!({"type": "object", "additionalProperties": value}),
            Some(names) => json_schema!({
                "type": "object",
                "propertyNames": names,
                "additionalProperties": value,
            }),
        }
    };
    [T: Words<By>, By: 'static] Word<T, By> = |_| json_schema!({"type": "string", "enum": T::WORDS});
    [] Note = |_| json_schema!({"anyOf": [{"type": "string"}, {"const": null}]});
    [] PositiveDuration = |generator| generator.subschema_for::<HumanDuration>();
    [] PositiveSize = |generator| generator.subschema_for::<ByteSize>();
    [const LEAST: u32, const MOST: u32] Within<LEAST, MOST> =
        |_| json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST});
    [] ResponseStatus = |_| {
        let (least, most) = Self::NUMBERS.into_inner();
        json_schema!({"type": "integer", "minimum": least, "maximum": most})
    };
}

/// Types of values, each with a name in the schema; the title is its name in the tables of docs/config/.
#[macro_export]
macro_rules! named_schemas {
    ($($type:ty, $name:literal: $schema:tt)+) => {$(
        impl ::schemars::JsonSchema for $type {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!($schema)
            }
        }
    )+};
}

named_schemas! {
    HumanDuration, "Duration": {
        "title": "duration",
        "description": "A duration with its unit, such as 1h30m; units are ns, us, ms, s, m, h and d.",
        "type": "string",
        "pattern": "^((\\d+\\.?\\d*|\\.\\d+)(d|h|m|s|ms|us|\u{b5}s|\u{3bc}s|ns))+$",
    }
    ByteSize, "Size": {
        "title": "size",
        "description": "A size in bytes, such as 512, 64kB or 1MiB.",
        "type": ["integer", "string"],
        "minimum": 0,
        "pattern": format!("^\\d+({})$", SIZE_UNITS.map(|(unit, _)| unit).join("|")),
    }
    Percent, "Percent": {
        "title": "percent",
        "type": "string",
        "pattern": "^(100|\\d\\d?)%$",
    }
    FieldName, "HeaderName": {
        "title": "header name",
        "type": ["string", "number", "boolean"],
        "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
    }
    MethodName, "Method": {
        "title": "method",
        "type": ["string", "number"],
        "pattern": "^[!#$%&'*+.^_`|~0-9A-Z-]+$",
    }
    MediaType, "MediaType": {
        "title": "media type",
        "type": "string",
        "pattern": "^[A-Za-z0-9!#$&^_.+-]+/([A-Za-z0-9!#$&^_.+-]+|\\*)$",
    }
}
