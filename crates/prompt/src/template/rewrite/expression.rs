//! Writes the expressions of the new template.

use minijinja::{
    machinery::ast,
    value::{Value, ValueKind},
};

use super::{Newlines, TemplateWriter, WriteResult};
use crate::template::{
    operators::{ITEMS, NESTED, RESULT},
    resume::PLACE,
};

impl TemplateWriter {
    /// Writes an expression, through a filter of this crate if one is given.
    pub(super) fn metered(
        &mut self,
        expression: &ast::Expr<'_>,
        filter: Option<&str>,
    ) -> WriteResult {
        self.expression(expression)?;
        if let Some(filter) = filter {
            self.put("|");
            self.put(filter);
        }
        Ok(())
    }

    /// Writes an expression next to an attribute, an index or a sign.
    fn base(&mut self, expression: &ast::Expr<'_>, filter: Option<&str>) -> WriteResult {
        let is_plain = match expression {
            ast::Expr::Var(_)
            | ast::Expr::GetAttr(_)
            | ast::Expr::GetItem(_)
            | ast::Expr::Call(_) => filter.is_none(),
            _ => false,
        };
        if is_plain {
            return self.expression(expression);
        }
        self.put("(");
        self.metered(expression, filter)?;
        self.put(")");
        Ok(())
    }

    /// Writes an expression that an operator or a filter may follow: in parentheses if required.
    /// Parsers allow few levels of them, so a chain of filters has none.
    pub(super) fn expression(&mut self, expression: &ast::Expr<'_>) -> WriteResult {
        match expression {
            ast::Expr::Var(name) => self.put(name.id),
            ast::Expr::Const(constant) => self.constant(&constant.value)?,
            ast::Expr::Slice(slice) => self.slice(slice)?,
            ast::Expr::UnaryOp(operation) => {
                self.put(match operation.op {
                    ast::UnaryOpKind::Not => "(not ",
                    ast::UnaryOpKind::Neg => "(-",
                });
                self.base(&operation.expr, None)?;
                self.put(")");
            }
            ast::Expr::BinOp(operation) => self.operation(operation)?,
            ast::Expr::Compare(comparison) => self.comparison(comparison)?,
            ast::Expr::IfExpr(choice) => self.choice(choice)?,
            ast::Expr::Filter(filter) => {
                self.expression(filter.expr.as_ref().ok_or("it filters nothing")?)?;
                self.put("|");
                self.put(filter.name);
                self.arguments(&filter.args)?;
            }
            ast::Expr::Test(test) => {
                self.put("(");
                self.expression(&test.expr)?;
                self.put(" is ");
                self.put(test.name);
                self.arguments(&test.args)?;
                self.put(")");
            }
            ast::Expr::GetAttr(attribute) => {
                self.base(&attribute.expr, None)?;
                self.put(".");
                self.put(attribute.name);
            }
            ast::Expr::GetItem(item) => self.item(item)?,
            ast::Expr::Call(call) => self.call(call)?,
            ast::Expr::List(list) => self.container("[", &list.items, "]")?,
            ast::Expr::Tuple(tuple) => {
                let close = if tuple.items.is_empty() { ")" } else { ",)" };
                self.container("(", &tuple.items, close)?;
            }
            ast::Expr::Map(map) => self.map(map)?,
        }
        Ok(())
    }

    fn choice(&mut self, choice: &ast::IfExpr<'_>) -> WriteResult {
        self.put("(");
        self.expression(&choice.true_expr)?;
        self.put(" if ");
        self.expression(&choice.test_expr)?;
        if let Some(otherwise) = &choice.false_expr {
            self.put(" else ");
            self.expression(otherwise)?;
        }
        self.put(")");
        Ok(())
    }

    fn item(&mut self, item: &ast::GetItem<'_>) -> WriteResult {
        let constant = as_constant(&item.subscript_expr);
        // Only indexing a text takes time by its length, and a text is never indexed by a name.
        let by_name = constant.is_some_and(|key| key.as_str().is_some());
        self.base(&item.expr, (!by_name).then_some(ITEMS))?;
        self.put("[");
        self.metered(&item.subscript_expr, constant.is_none().then_some(ITEMS))?;
        if constant.is_none() && matches!(&item.expr, ast::Expr::Var(list) if list.id == "messages")
        {
            self.put("|");
            self.put(PLACE);
        }
        self.put("]");
        Ok(())
    }

    fn slice(&mut self, slice: &ast::Slice<'_>) -> WriteResult {
        self.base(&slice.expr, Some(ITEMS))?;
        self.put("[");
        let bounds = [(&slice.start, ":"), (&slice.stop, ":"), (&slice.step, "")];
        for (bound, mark) in bounds {
            if let Some(bound) = bound {
                self.expression(bound)?;
            }
            self.put(mark);
        }
        self.put("]|");
        self.put(RESULT);
        Ok(())
    }

    pub(super) fn call(&mut self, call: &ast::Call<'_>) -> WriteResult {
        // It stores its argument, and compares it.
        if matches!(&call.expr, ast::Expr::GetAttr(method) if method.name == "changed") {
            return Err("the method changed is not known here".to_owned());
        }
        self.base(&call.expr, None)?;
        if call.args.is_empty() {
            self.put("()");
        }
        self.arguments(&call.args)
    }

    pub(super) fn arguments(&mut self, arguments: &[ast::CallArg<'_>]) -> WriteResult {
        if arguments.is_empty() {
            return Ok(());
        }
        self.put("(");
        self.separated(arguments, |writer, argument| {
            let value = match argument {
                ast::CallArg::Pos(value) => value,
                ast::CallArg::Kwarg(name, value) => {
                    writer.put(name);
                    writer.put("=");
                    value
                }
                ast::CallArg::PosSplat(value) => {
                    writer.put("*");
                    value
                }
                ast::CallArg::KwargSplat(value) => {
                    writer.put("**");
                    value
                }
            };
            writer.expression(value)
        })?;
        self.put(")");
        Ok(())
    }

    fn container(&mut self, open: &str, items: &[ast::Expr<'_>], close: &str) -> WriteResult {
        let is_constant = items.iter().all(|item| as_constant(item).is_some());
        self.put(open);
        self.separated(items, Self::expression)?;
        self.put(close);
        if !is_constant {
            self.put("|");
            self.put(NESTED);
        }
        Ok(())
    }

    fn map(&mut self, map: &ast::Map<'_>) -> WriteResult {
        let is_constant = map
            .keys
            .iter()
            .chain(&map.values)
            .all(|item| as_constant(item).is_some());
        let pairs: Vec<_> = map.keys.iter().zip(&map.values).collect();
        // Separate from a tag's own brace.
        self.put(" {");
        self.separated(&pairs, |writer, (key, value)| {
            writer.metered(key, as_constant(key).is_none().then_some(ITEMS))?;
            writer.put(": ");
            writer.expression(value)
        })?;
        self.put("} ");
        if !is_constant {
            self.put("|");
            self.put(NESTED);
        }
        Ok(())
    }

    fn constant(&mut self, value: &Value) -> WriteResult {
        match value.kind() {
            ValueKind::None => self.put("none"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.put(&value.to_string()),
            ValueKind::Number => {
                let float = f64::try_from(value.clone())
                    .ok()
                    .filter(|float| float.is_finite());
                self.put(&format!(
                    "{:?}",
                    float.ok_or("it has a number that is none")?
                ));
            }
            ValueKind::String => self.quoted(value.as_str().unwrap_or_default(), Newlines::Escaped),
            kind => return Err(format!("it has a constant {kind}")),
        }
        Ok(())
    }
}

pub(super) fn as_constant<'a>(expression: &'a ast::Expr<'_>) -> Option<&'a Value> {
    match expression {
        ast::Expr::Const(constant) => Some(&constant.value),
        _ => None,
    }
}
