//! The filters, tests, functions and methods that templates may call, each charged to the render's
//! budget.
//!
//! Filters of the template engine are added one by one: an unlisted one does not exist. The list
//! omits filters that chat templates do not use and those that could not be charged.

use minijinja::{
    Environment, Error, State, filters, functions, tests,
    value::{Rest, Value, ValueOrKwargs},
};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::meter::{
    charge, charge_comparison, charge_items, charge_result, charge_sort, charge_text,
    check_nesting, refused,
};

type ChargeFn = fn(&[Value]) -> Result<(), Error>;

/// Adds everything to an empty environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    add_filters(environment);
    add_tests(environment);
    add_global(
        environment,
        "range",
        Value::from_function(functions::range),
        |_| Ok(()),
    );
    add_global(
        environment,
        "dict",
        Value::from_function(functions::dict),
        |args| each(args, check_nesting),
    );
    add_global(
        environment,
        "namespace",
        Value::from_function(functions::namespace),
        |args| each(args, check_nesting),
    );
    environment.set_unknown_method_callback(|state, value, name, args| {
        let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
        match name {
            "replace" => charge_replace(&all)?,
            "join" => charge_join(args.first(), Some(value))?,
            "format" => charge_format(&all)?,
            "items" | "keys" | "values" => charge_items(value)?,
            // The key is hashed.
            "get" => each(args, charge_items)?,
            _ => each(&all, charge_text)?,
        }
        charge_result(unknown_method_callback(state, value, name, args)?)
    });
}

fn add_filters(environment: &mut Environment<'_>) {
    macro_rules! add {
        ($charge:expr; $($name:literal = $filter:ident),*) => {
            $(add_filter(environment, $name, Value::from_function(filters::$filter), $charge);)*
        };
    }
    add!(|_| Ok(()); "default" = default, "d" = default, "safe" = safe, "abs" = abs, "round" = round, "bool" = bool,
        "attr" = attr);
    add!(|args| each(args, charge_items); "length" = length, "count" = length, "first" = first, "last" = last,
        "reverse" = reverse, "list" = list, "items" = items, "map" = map, "select" = select, "reject" = reject,
        "selectattr" = selectattr, "rejectattr" = rejectattr);
    add!(|args| each(args, charge_text); "lower" = lower, "upper" = upper, "title" = title,
        "capitalize" = capitalize, "trim" = trim, "split" = split, "lines" = lines, "string" = string, "int" = int,
        "float" = float, "escape" = escape, "e" = escape);
    add!(|args| each(args, charge_sort); "sort" = sort, "dictsort" = dictsort, "unique" = unique, "min" = min,
        "max" = max);
    add!(charge_replace; "replace" = replace);
    add!(|args| charge_join(args.first(), args.get(1)); "join" = join);
    add!(charge_indent; "indent" = indent);
    add!(charge_format; "format" = format);
}

fn add_tests(environment: &mut Environment<'_>) {
    macro_rules! add {
        ($charge:expr; $($name:literal = $test:ident),*) => {
            $(add_test(environment, $name, Value::from_function(tests::$test), $charge);)*
        };
    }
    add!(|_| Ok(()); "undefined" = is_undefined, "defined" = is_defined, "none" = is_none, "safe" = is_safe,
        "escaped" = is_safe, "boolean" = is_boolean, "odd" = is_odd, "even" = is_even, "divisibleby" = is_divisibleby,
        "number" = is_number, "integer" = is_integer, "int" = is_integer, "float" = is_float, "string" = is_string,
        "mapping" = is_mapping, "true" = is_true, "false" = is_false, "filter" = is_filter, "test" = is_test);
    add!(|args| each(args, charge_text); "startingwith" = is_startingwith, "endingwith" = is_endingwith,
        "lower" = is_lower, "upper" = is_upper, "in" = is_in);
    add!(compared; "sameas" = is_sameas, "eq" = is_eq, "equalto" = is_eq, "==" = is_eq, "ne" = is_ne,
        "!=" = is_ne, "lt" = is_lt, "lessthan" = is_lt, "<" = is_lt, "le" = is_le, "<=" = is_le, "gt" = is_gt,
        "greaterthan" = is_gt, ">" = is_gt, "ge" = is_ge, ">=" = is_ge);
}

fn add_filter(
    environment: &mut Environment<'_>,
    name: &'static str,
    filter: Value,
    charge: ChargeFn,
) {
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            charge(&args)?;
            charge_result(filter.call(state, &args)?)
        },
    );
}

fn add_test(environment: &mut Environment<'_>, name: &'static str, test: Value, charge: ChargeFn) {
    environment.add_test(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            charge(&args)?;
            Ok::<_, Error>(test.call(state, &args)?.is_true())
        },
    );
}

fn add_global(
    environment: &mut Environment<'_>,
    name: &'static str,
    function: Value,
    charge: ChargeFn,
) {
    environment.add_function(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            charge(&args)?;
            function.call(state, &args)
        },
    );
}

fn each(args: &[Value], charge: fn(&Value) -> Result<(), Error>) -> Result<(), Error> {
    args.iter().try_for_each(charge)
}

fn compared(args: &[Value]) -> Result<(), Error> {
    match args {
        [one, other, ..] => charge_comparison(one, other),
        _ => Ok(()),
    }
}

/// Charges a replacement; the arguments are `value`, the pattern and the replacement.
fn charge_replace(args: &[Value]) -> Result<(), Error> {
    each(args, charge_text)?;
    let [value, from, to, ..] = args else {
        return Ok(());
    };
    let (value, from, to) = (value.to_string(), from.to_string(), to.to_string());
    let times = if from.is_empty() {
        value.len() + 1
    } else {
        value.matches(from.as_str()).count()
    };
    charge(times.saturating_mul(to.len()))
}

fn charge_join(items: Option<&Value>, separator: Option<&Value>) -> Result<(), Error> {
    let Some(items) = items else { return Ok(()) };
    charge_text(items)?;
    let Some(separator) = separator else {
        return Ok(());
    };
    charge_text(separator)?;
    // An item's own text is charged above.
    charge(
        items
            .len()
            .unwrap_or(0)
            .saturating_mul(separator.as_str().map_or(NUMBER, str::len)),
    )
}

/// Maximum length of a number's text.
const NUMBER: usize = 40;

fn charge_indent(args: &[Value]) -> Result<(), Error> {
    each(args, charge_text)?;
    let Some(text) = args.first() else {
        return Ok(());
    };
    let lines = text
        .as_str()
        .map_or(1, |text| text.matches('\n').count() + 1);
    let named = args
        .iter()
        .filter(|arg| arg.is_kwargs())
        .filter_map(|kwargs| kwargs.get_attr("width").ok());
    let widths = args[1..]
        .iter()
        .cloned()
        .chain(named)
        .filter_map(|width| width.as_usize());
    charge(lines.saturating_mul(widths.max().unwrap_or(4)))
}

/// Charges a format, which may have a width: only a small one is allowed.
fn charge_format(args: &[Value]) -> Result<(), Error> {
    const DIGITS: usize = 3;
    each(args, charge_text)?;
    let Some(format) = args.first().and_then(Value::as_str) else {
        return Ok(());
    };
    let has_long_number = format
        .split(|character: char| !character.is_ascii_digit())
        .any(|digits| digits.len() > DIGITS);
    if format.contains('*') || has_long_number {
        return Err(refused(
            "a format may ask for a width of at most three digits",
        ));
    }
    let directives = format.matches(['%', '{']).count();
    let longest = args
        .iter()
        .filter_map(Value::as_str)
        .map(str::len)
        .max()
        .unwrap_or(0);
    charge(directives.saturating_mul(longest + 1_000))
}
