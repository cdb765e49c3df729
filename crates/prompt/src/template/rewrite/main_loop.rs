//! Finds the loop over the messages whose iterations depend on no later message but the next one.
//!
//! Such an iteration writes the same text at the next turn of a conversation, if the variables that
//! it reads have the same values where the loop begins. The search knows few forms; a template of
//! another form is rendered whole at each turn.
//!
//! **Invariant**: an iteration of the found loop reads its message, its place from the beginning,
//! the messages before it, the first one and the next one, the listed variables, and what it sets
//! itself before; it changes nothing that another iteration reads.

use std::collections::{BTreeSet, HashSet};

use minijinja::machinery::ast;

/// The loop over the messages.
pub(super) struct MainLoop<'a> {
    /// Its place among the statements of the template.
    pub(super) at: usize,
    /// The variables of the template and the request that its iterations read.
    pub(super) variables: BTreeSet<&'a str>,
}

/// What the loop runs over, in every template.
const MESSAGES: &str = "messages";
const LOOP: &str = "loop";

/// Names that are no variables of the template or the request.
const SPECIAL: [&str; 7] = [
    LOOP, MESSAGES, "self", "super", "caller", "varargs", "kwargs",
];

/// Functions whose result depends on their arguments alone.
const FUNCTIONS: [&str; 4] = ["raise_exception", "range", "dict", "namespace"];

/// What an iteration may ask about its place.
const PLACE: [&str; 6] = ["index", "index0", "first", "last", "previtem", "nextitem"];

/// Returns the loop over the messages; `None`: its iterations may depend on later messages.
pub(super) fn find<'a>(statements: &'a [ast::Stmt<'a>]) -> Option<MainLoop<'a>> {
    let mut template = Declarations::default();
    template.add_all(statements);
    let is_hidden = |name: &str| template.set.contains(name);
    let mut macros = template.macros.iter().map(|declared| declared.name);
    if template.has_conditional_macro
        || SPECIAL.into_iter().chain(FUNCTIONS).any(is_hidden)
        || macros
            .any(|name| is_hidden(name) || SPECIAL.contains(&name) || FUNCTIONS.contains(&name))
    {
        return None;
    }
    let is_main = |statement: &ast::Stmt<'_>| {
        matches!(statement, ast::Stmt::ForLoop(each)
            if matches!(&each.iter, ast::Expr::Var(list) if list.id == MESSAGES))
    };
    let at = statements.iter().rposition(is_main)?;
    let ast::Stmt::ForLoop(each) = &statements[at] else {
        return None;
    };
    let ast::Expr::Var(message) = &each.target else {
        return None;
    };
    if each.recursive || each.filter_expr.is_some() || !each.else_body.is_empty() {
        return None;
    }
    let mut reader = Reader::new(&each.body, &template);
    reader.statements(&each.body, &mut HashSet::from([message.id]))?;
    let mut variables = reader.variables;
    for declared in &template.macros {
        let mut reader = Reader::new(&declared.body, &template);
        reader.is_macro = true;
        reader.declaration(declared)?;
        variables.append(&mut reader.variables);
    }
    Some(MainLoop { at, variables })
}

/// The names that statements declare.
#[derive(Default)]
struct Declarations<'a> {
    /// Those of variables, at any depth but not in macros.
    set: HashSet<&'a str>,
    macros: Vec<&'a ast::Macro<'a>>,
    /// How many statements are around the present one.
    depth: usize,
    /// A macro may have another body, or none, where it is called: it is declared more than once,
    /// or on a condition.
    has_conditional_macro: bool,
}

impl<'a> Declarations<'a> {
    fn add_all(&mut self, statements: &'a [ast::Stmt<'a>]) {
        self.depth += 1;
        for statement in statements {
            self.add(statement);
        }
        self.depth -= 1;
    }

    fn add(&mut self, statement: &'a ast::Stmt<'a>) {
        match statement {
            ast::Stmt::ForLoop(each) => {
                self.target(&each.target);
                self.add_all(&each.body);
                self.add_all(&each.else_body);
            }
            ast::Stmt::IfCond(condition) => {
                self.add_all(&condition.true_body);
                self.add_all(&condition.false_body);
            }
            ast::Stmt::WithBlock(with) => {
                with.assignments
                    .iter()
                    .for_each(|(target, _)| self.target(target));
                self.add_all(&with.body);
            }
            ast::Stmt::Set(set) => self.target(&set.target),
            ast::Stmt::SetBlock(set) => {
                self.target(&set.target);
                self.add_all(&set.body);
            }
            ast::Stmt::FilterBlock(block) => self.add_all(&block.body),
            ast::Stmt::AutoEscape(block) => self.add_all(&block.body),
            ast::Stmt::Macro(declared) => {
                let is_known = self.macros.iter().any(|known| known.name == declared.name);
                self.has_conditional_macro |= is_known || self.depth > 1;
                self.macros.push(declared);
            }
            _ => {}
        }
    }

    fn target(&mut self, target: &'a ast::Expr<'a>) {
        match target {
            ast::Expr::Var(name) => {
                self.set.insert(name.id);
            }
            ast::Expr::List(list) => list.items.iter().for_each(|item| self.target(item)),
            ast::Expr::Tuple(list) => list.items.iter().for_each(|item| self.target(item)),
            // An attribute of a variable.
            _ => {}
        }
    }
}

/// Reads statements of an iteration, or of a macro. A method returns `None` where they may depend
/// on another iteration or a later message.
struct Reader<'a, 'd> {
    template: &'d Declarations<'a>,
    /// Names that these statements set. The values of an earlier iteration are still there, so
    /// they are read only where they were set before.
    set_here: HashSet<&'a str>,
    /// Other names that they read.
    variables: BTreeSet<&'a str>,
    inner_loops: usize,
    is_macro: bool,
}

/// Names with a value of this iteration.
type AssignedNames<'a> = HashSet<&'a str>;

impl<'a, 'd> Reader<'a, 'd> {
    fn new(statements: &'a [ast::Stmt<'a>], template: &'d Declarations<'a>) -> Self {
        let mut own = Declarations::default();
        own.add_all(statements);
        Self {
            template,
            set_here: own.set,
            variables: BTreeSet::new(),
            inner_loops: 0,
            is_macro: false,
        }
    }

    fn statements(
        &mut self,
        statements: &'a [ast::Stmt<'a>],
        assigned: &mut AssignedNames<'a>,
    ) -> Option<()> {
        statements
            .iter()
            .try_for_each(|statement| self.statement(statement, assigned))
    }

    fn statement(
        &mut self,
        statement: &'a ast::Stmt<'a>,
        assigned: &mut AssignedNames<'a>,
    ) -> Option<()> {
        match statement {
            ast::Stmt::EmitRaw(_) | ast::Stmt::Continue(_) => Some(()),
            ast::Stmt::EmitExpr(emit) => self.expression(&emit.expr, assigned),
            ast::Stmt::ForLoop(each) => self.inner_loop(each, assigned),
            ast::Stmt::IfCond(condition) => {
                self.expression(&condition.expr, assigned)?;
                let mut otherwise = assigned.clone();
                self.statements(&condition.true_body, assigned)?;
                self.statements(&condition.false_body, &mut otherwise)?;
                assigned.retain(|name| otherwise.contains(name));
                Some(())
            }
            ast::Stmt::WithBlock(with) => {
                let mut inner = assigned.clone();
                for (target, value) in &with.assignments {
                    self.expression(value, &inner)?;
                    assign(target, &mut inner)?;
                }
                self.statements(&with.body, &mut inner)
            }
            ast::Stmt::Set(set) => {
                self.expression(&set.expr, assigned)?;
                assign(&set.target, assigned)
            }
            ast::Stmt::SetBlock(set) => {
                if let Some(filter) = &set.filter {
                    self.expression(filter, assigned)?;
                }
                self.statements(&set.body, &mut assigned.clone())?;
                assign(&set.target, assigned)
            }
            ast::Stmt::FilterBlock(block) => {
                self.expression(&block.filter, assigned)?;
                self.statements(&block.body, &mut assigned.clone())
            }
            // An end of the loop before its end is no place to go on from.
            ast::Stmt::Break(_) => (self.inner_loops > 0).then_some(()),
            _ => None,
        }
    }

    fn inner_loop(
        &mut self,
        each: &'a ast::ForLoop<'a>,
        assigned: &mut AssignedNames<'a>,
    ) -> Option<()> {
        if each.recursive {
            return None;
        }
        self.expression(&each.iter, assigned)?;
        self.statements(&each.else_body, &mut assigned.clone())?;
        let mut inner = assigned.clone();
        assign(&each.target, &mut inner)?;
        self.inner_loops += 1;
        if let Some(filter) = &each.filter_expr {
            self.expression(filter, &inner)?;
        }
        self.statements(&each.body, &mut inner)?;
        self.inner_loops -= 1;
        Some(())
    }

    fn declaration(&mut self, declared: &'a ast::Macro<'a>) -> Option<()> {
        let mut assigned = AssignedNames::new();
        for parameter in &declared.args {
            assign(parameter, &mut assigned)?;
        }
        for default in &declared.defaults {
            self.expression(default, &assigned)?;
        }
        self.statements(&declared.body, &mut assigned)
    }

    fn expression(
        &mut self,
        expression: &'a ast::Expr<'a>,
        assigned: &AssignedNames<'a>,
    ) -> Option<()> {
        match expression {
            ast::Expr::Const(_) => Some(()),
            ast::Expr::Var(name) => self.variable(name.id, assigned),
            ast::Expr::Slice(slice) => {
                self.expression(&slice.expr, assigned)?;
                let bounds = [&slice.start, &slice.stop, &slice.step];
                self.all(bounds.into_iter().flatten(), assigned)
            }
            ast::Expr::UnaryOp(operation) => self.expression(&operation.expr, assigned),
            ast::Expr::BinOp(operation) => self.all([&operation.left, &operation.right], assigned),
            ast::Expr::Compare(comparison) => {
                self.expression(&comparison.expr, assigned)?;
                self.all(comparison.ops.iter().map(|next| &next.expr), assigned)
            }
            ast::Expr::IfExpr(choice) => {
                self.all([&choice.test_expr, &choice.true_expr], assigned)?;
                self.all(&choice.false_expr, assigned)
            }
            ast::Expr::Filter(filter) => {
                self.all(&filter.expr, assigned)?;
                self.arguments(&filter.args, assigned)
            }
            ast::Expr::Test(test) => {
                self.expression(&test.expr, assigned)?;
                self.arguments(&test.args, assigned)
            }
            ast::Expr::GetAttr(attribute) => match &attribute.expr {
                ast::Expr::Var(name) if name.id == LOOP => self.place(attribute.name),
                other => self.expression(other, assigned),
            },
            ast::Expr::GetItem(item) => match &item.expr {
                ast::Expr::Var(name) if name.id == MESSAGES => self.neighbour(&item.subscript_expr),
                other => self.all([other, &item.subscript_expr], assigned),
            },
            ast::Expr::Call(call) => self.call(call, assigned),
            ast::Expr::List(list) => self.all(&list.items, assigned),
            ast::Expr::Tuple(tuple) => self.all(&tuple.items, assigned),
            ast::Expr::Map(map) => self.all(map.keys.iter().chain(&map.values), assigned),
        }
    }

    fn all(
        &mut self,
        expressions: impl IntoIterator<Item = &'a ast::Expr<'a>>,
        assigned: &AssignedNames<'a>,
    ) -> Option<()> {
        expressions
            .into_iter()
            .try_for_each(|expression| self.expression(expression, assigned))
    }

    fn variable(&mut self, name: &'a str, assigned: &AssignedNames<'a>) -> Option<()> {
        if assigned.contains(name) {
            return Some(());
        }
        let is_special = SPECIAL.contains(&name) || self.is_macro_name(name);
        // A macro sees the value at its own place.
        let is_set = self.is_macro && self.template.set.contains(name);
        if is_special || is_set || self.set_here.contains(name) {
            return None;
        }
        self.variables.insert(name);
        Some(())
    }

    fn is_macro_name(&self, name: &str) -> bool {
        self.template
            .macros
            .iter()
            .any(|declared| declared.name == name)
    }

    /// Reads `loop.NAME`.
    fn place(&self, name: &str) -> Option<()> {
        let is_own = self.inner_loops > 0 || !self.is_macro;
        (is_own && PLACE.contains(&name)).then_some(())
    }

    /// Reads `messages[INDEX]`.
    fn neighbour(&self, index: &ast::Expr<'_>) -> Option<()> {
        if as_number(index) == Some(0) {
            return Some(());
        }
        if self.inner_loops > 0 || self.is_macro {
            return None;
        }
        let (place, distance) = match index {
            ast::Expr::BinOp(operation) => {
                let distance = as_number(&operation.right)?;
                match operation.op {
                    ast::BinOpKind::Add => (&operation.left, distance),
                    ast::BinOpKind::Sub => (&operation.left, -distance),
                    _ => return None,
                }
            }
            other => (other, 0),
        };
        let ast::Expr::GetAttr(attribute) = place else {
            return None;
        };
        let is_loop = matches!(&attribute.expr, ast::Expr::Var(name) if name.id == LOOP);
        let offset = match attribute.name {
            "index0" if is_loop => distance,
            "index" if is_loop => distance.checked_add(1)?,
            _ => return None,
        };
        (offset <= 1).then_some(())
    }

    fn call(&mut self, call: &'a ast::Call<'a>, assigned: &AssignedNames<'a>) -> Option<()> {
        match &call.expr {
            ast::Expr::Var(name) if assigned.contains(name.id) => return None,
            ast::Expr::Var(name) if self.is_macro_name(name.id) => {}
            ast::Expr::Var(name) if FUNCTIONS.contains(&name.id) => {}
            // A method of a value.
            ast::Expr::GetAttr(method) => self.expression(&method.expr, assigned)?,
            _ => return None,
        }
        self.arguments(&call.args, assigned)
    }

    fn arguments(
        &mut self,
        arguments: &'a [ast::CallArg<'a>],
        assigned: &AssignedNames<'a>,
    ) -> Option<()> {
        arguments.iter().try_for_each(|argument| match argument {
            ast::CallArg::Pos(value) | ast::CallArg::Kwarg(_, value) => {
                self.expression(value, assigned)
            }
            ast::CallArg::PosSplat(_) | ast::CallArg::KwargSplat(_) => None,
        })
    }
}

/// Notes the variables that an assignment sets. `None`: it changes a value that others may see.
fn assign<'a>(target: &'a ast::Expr<'a>, assigned: &mut AssignedNames<'a>) -> Option<()> {
    match target {
        ast::Expr::Var(name) => {
            assigned.insert(name.id);
            Some(())
        }
        ast::Expr::List(list) => list
            .items
            .iter()
            .try_for_each(|item| assign(item, assigned)),
        ast::Expr::Tuple(list) => list
            .items
            .iter()
            .try_for_each(|item| assign(item, assigned)),
        _ => None,
    }
}

fn as_number(expression: &ast::Expr<'_>) -> Option<i64> {
    match expression {
        ast::Expr::Const(constant) if constant.value.is_integer() => {
            i64::try_from(constant.value.clone()).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{machinery::parse, syntax::SyntaxConfig};

    use super::*;

    /// Returns the variables that the loop of a template reads.
    fn variables(source: &str) -> Option<Vec<String>> {
        let parsed = parse(source, "chat", SyntaxConfig::default()).expect("it is a template");
        let ast::Stmt::Template(template) = parsed else {
            panic!("{source} is no template");
        };
        let found = find(&template.children)?;
        Some(found.variables.into_iter().map(str::to_owned).collect())
    }

    fn in_loop(inside: &str) -> Option<Vec<String>> {
        let before =
            "{% set ns = namespace(a=1) %}{% macro m(role) %}{{ role }}{{ b }}{% endmacro %}";
        variables(&format!(
            "{before}{{% for message in messages %}}{inside}{{% endfor %}}"
        ))
    }

    #[test]
    fn a_loop_that_reads_its_message_and_its_neighbours_is_found() {
        for (inside, reads) in [
            ("{{ message.role }}", &["b"][..]),
            ("{{ m(message.role) }}", &["b"]),
            (
                "{% if loop.index0 > ns.a %}{{ message.content }}{% endif %}",
                &["b", "ns"],
            ),
            (
                "{% set c = message.content %}{{ c.split('a')[-1] | trim }}{{ d }}",
                &["b", "d"],
            ),
            (
                "{% if a %}{% set c = 1 %}{% else %}{% set c = 2 %}{% endif %}{{ c }}",
                &["a", "b"],
            ),
            (
                "{{ messages[0].role }}{{ messages[loop.index0 - 1].role }}",
                &["b"],
            ),
            (
                "{% if not loop.last and messages[loop.index0 + 1].role %}x{% endif %}",
                &["b"],
            ),
            ("{{ messages[loop.index].role }}", &["b"]),
            (
                "{% for call in message.tool_calls %}{{ call.name }}{{ loop.last }}{% endfor %}",
                &["b"],
            ),
            (
                "{% for call in message.tool_calls %}{% break %}{% endfor %}",
                &["b"],
            ),
            (
                "{% if message.role == 'x' %}{{ raise_exception('x') }}{% endif %}",
                &["b"],
            ),
        ] {
            let reads: Vec<_> = reads.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(in_loop(inside), Some(reads), "{inside}");
        }
    }

    #[test]
    fn a_loop_that_may_depend_on_later_messages_or_other_iterations_is_not() {
        for inside in [
            "{{ messages[-1].role }}",
            "{{ messages[1].role }}",
            "{{ messages[loop.index0 + 2].role }}",
            "{{ messages[loop.index + 1].role }}",
            "{{ messages[loop.index0 * 2].role }}",
            "{{ messages[a].role }}",
            "{{ messages | length }}",
            "{{ messages[:2] }}",
            "{{ loop.length }}",
            "{{ loop.revindex }}",
            "{{ loop }}",
            "{{ loop.cycle(1, 2) }}",
            "{{ strftime_now('%d') }}",
            "{{ f(1) }}",
            "{% set ns.a = 2 %}",
            "{{ c }}{% set c = 1 %}",
            "{% if a %}{% set c = 1 %}{% endif %}{{ c }}",
            "{% for x in a %}{% set c = 1 %}{% endfor %}{{ c }}",
            "{% for x in a %}{{ messages[loop.index0].role }}{% endfor %}",
            "{% break %}",
            "{% set messages = a %}",
            "{% macro n() %}{% endmacro %}",
            "{% call m('x') %}{% endcall %}",
            "{% set m = a %}{{ m('x') }}",
        ] {
            assert_eq!(in_loop(inside), None, "{inside}");
        }
        for source in [
            "{% for message in messages[1:] %}x{% endfor %}",
            "{% for message in messages if message.role %}x{% endfor %}",
            "{% for message in messages %}x{% else %}y{% endfor %}",
            "{% for role, content in messages %}x{% endfor %}",
            "{% if a %}{% for message in messages %}x{% endfor %}{% endif %}",
            "{% set messages = a %}{% for message in messages %}x{% endfor %}",
            "{% set a = 1 %}{% macro m() %}{{ a }}{% endmacro %}{% for message in messages %}x{% endfor %}",
            "{% macro m() %}{{ messages }}{% endmacro %}{% for message in messages %}x{% endfor %}",
        ] {
            assert_eq!(variables(source), None, "{source}");
        }
    }
}
