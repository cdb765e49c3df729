//! Writes operators and comparisons.

use minijinja::machinery::ast;

use super::{TemplateWriter, WriteResult, expression::as_constant};
use crate::template::operators::{ADD, CONCATENATE, EQUAL, ITEMS, LESS, MULTIPLY, SEARCHED};

impl TemplateWriter {
    pub(super) fn operation(&mut self, operation: &ast::BinOp<'_>) -> WriteResult {
        use ast::BinOpKind::{
            Add, Concat, Div, Eq, FloorDiv, Gt, Gte, In, Lt, Lte, Mul, Ne, Pow, Rem, ScAnd, ScOr,
            Sub,
        };
        let (left, right) = (&operation.left, &operation.right);
        // A comparison ends with the shorter operand, and a constant of the template is short.
        let is_short = as_constant(left).is_some() || as_constant(right).is_some();
        let word = match operation.op {
            Concat => return self.operator(left, CONCATENATE, right),
            Add => return self.operator(left, ADD, right),
            Mul => return self.operator(left, MULTIPLY, right),
            Eq if !is_short => return self.operator(left, EQUAL, right),
            Lt if !is_short => return self.operator(left, LESS, right),
            Gt if !is_short => return self.operator(right, LESS, left),
            Ne if !is_short => return self.negated(left, EQUAL, right),
            In => return self.contained(left, " in ", right),
            Lte if !is_short => return self.compared(left, " <= ", right),
            Gte if !is_short => return self.compared(left, " >= ", right),
            Eq => " == ",
            Ne => " != ",
            Lt => " < ",
            Lte => " <= ",
            Gt => " > ",
            Gte => " >= ",
            ScAnd | ScOr => {
                self.put("(");
                self.chain(
                    operation,
                    if matches!(operation.op, ScAnd) {
                        " and "
                    } else {
                        " or "
                    },
                )?;
                self.put(")");
                return Ok(());
            }
            Sub => " - ",
            Div => " / ",
            FloorDiv => " // ",
            Rem => " % ",
            Pow => " ** ",
        };
        self.put("(");
        self.expression(left)?;
        self.put(word);
        self.expression(right)?;
        self.put(")");
        Ok(())
    }

    /// Writes `and` or `or`, for any number of operands of one kind, without parentheses for each.
    fn chain(&mut self, operation: &ast::BinOp<'_>, word: &str) -> WriteResult {
        match &operation.left {
            ast::Expr::BinOp(left)
                if matches!(
                    (left.op, operation.op),
                    (ast::BinOpKind::ScAnd, ast::BinOpKind::ScAnd)
                        | (ast::BinOpKind::ScOr, ast::BinOpKind::ScOr)
                ) =>
            {
                self.chain(left, word)?
            }
            left => self.expression(left)?,
        }
        self.put(word);
        self.expression(&operation.right)
    }

    /// Writes an operator as a filter of this crate.
    fn operator(
        &mut self,
        left: &ast::Expr<'_>,
        filter: &str,
        right: &ast::Expr<'_>,
    ) -> WriteResult {
        self.expression(left)?;
        self.put("|");
        self.put(filter);
        self.put("(");
        self.expression(right)?;
        self.put(")");
        Ok(())
    }

    fn negated(
        &mut self,
        left: &ast::Expr<'_>,
        filter: &str,
        right: &ast::Expr<'_>,
    ) -> WriteResult {
        self.put("(not ");
        self.operator(left, filter, right)?;
        self.put(")");
        Ok(())
    }

    /// Writes one of the template engine's own comparisons, with its left side charged.
    fn compared(&mut self, left: &ast::Expr<'_>, word: &str, right: &ast::Expr<'_>) -> WriteResult {
        self.put("(");
        self.metered(left, Some(SEARCHED))?;
        self.put(word);
        self.expression(right)?;
        self.put(")");
        Ok(())
    }

    fn contained(
        &mut self,
        left: &ast::Expr<'_>,
        word: &str,
        right: &ast::Expr<'_>,
    ) -> WriteResult {
        self.put("(");
        self.metered(left, as_constant(left).is_none().then_some(ITEMS))?;
        self.put(word);
        self.metered(right, as_constant(right).is_none().then_some(SEARCHED))?;
        self.put(")");
        Ok(())
    }

    pub(super) fn comparison(&mut self, comparison: &ast::Compare<'_>) -> WriteResult {
        self.put("(");
        self.metered(&comparison.expr, Some(SEARCHED))?;
        for part in &comparison.ops {
            self.put(match part.op {
                ast::CompareOpKind::Eq => " == ",
                ast::CompareOpKind::Ne => " != ",
                ast::CompareOpKind::Lt => " < ",
                ast::CompareOpKind::Lte => " <= ",
                ast::CompareOpKind::Gt => " > ",
                ast::CompareOpKind::Gte => " >= ",
                ast::CompareOpKind::In => " in ",
                ast::CompareOpKind::NotIn => " not in ",
            });
            self.metered(&part.expr, Some(SEARCHED))?;
        }
        self.put(")");
        Ok(())
    }
}
