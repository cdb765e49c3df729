//! Writes the statements of the new template.

use minijinja::machinery::ast;

use super::{Newlines, TemplateWriter, WriteResult, main_loop};
use crate::template::{
    operators::NESTED,
    resume::{BEGIN, RUNS},
};

impl TemplateWriter {
    /// Writes a template. Its loop over the messages may begin with a later one; see
    /// [`crate::template::resume`].
    pub(super) fn template(&mut self, statements: &[ast::Stmt<'_>]) -> WriteResult {
        let Some(found) = main_loop::find(statements) else {
            return self.statements(statements);
        };
        self.statements(&statements[..found.at])?;
        if let ast::Stmt::ForLoop(each) = &statements[found.at] {
            self.open("{%", each.span());
            self.put("if [");
            let variables: Vec<_> = found.variables.into_iter().collect();
            self.put(&variables.join(", "));
            self.put("]|");
            self.put(BEGIN);
            self.put(" %}{% endif %}");
            self.loop_head(each)?;
            self.put("{% if loop.index0|");
            self.put(RUNS);
            self.put(" %}");
            self.statements(&each.body)?;
            self.put("{% endif %}{% endfor %}");
        }
        self.statements(&statements[found.at + 1..])
    }

    pub(super) fn statements(&mut self, statements: &[ast::Stmt<'_>]) -> WriteResult {
        statements
            .iter()
            .try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>) -> WriteResult {
        match statement {
            ast::Stmt::Template(template) => self.statements(&template.children)?,
            ast::Stmt::EmitRaw(raw) => {
                self.open("{{", raw.span());
                self.quoted(raw.raw, Newlines::AsTheyAre);
                self.put(" }}");
            }
            ast::Stmt::EmitExpr(emit) => {
                self.open("{{", emit.span());
                self.expression(&emit.expr)?;
                self.put(" }}");
            }
            ast::Stmt::ForLoop(each) => self.for_loop(each)?,
            ast::Stmt::IfCond(condition) => {
                self.condition("if ", condition)?;
                self.put("{% endif %}");
            }
            ast::Stmt::WithBlock(with) => self.with_block(with)?,
            ast::Stmt::Set(set) => self.set(set)?,
            ast::Stmt::SetBlock(set) => self.set_block(set)?,
            ast::Stmt::FilterBlock(block) => {
                self.open("{%", block.span());
                self.put("filter ");
                self.filters(&block.filter)?;
                self.put(" %}");
                self.statements(&block.body)?;
                self.put("{% endfilter %}");
            }
            ast::Stmt::Macro(declared) => self.declaration(declared)?,
            ast::Stmt::CallBlock(block) => self.call_block(block)?,
            ast::Stmt::Continue(_) => self.put("{% continue %}"),
            ast::Stmt::Break(_) => self.put("{% break %}"),
            ast::Stmt::Do(call) => {
                self.open("{%", call.span());
                self.put("do ");
                self.call(&call.call)?;
                self.put(" %}");
            }
            ast::Stmt::AutoEscape(_) => return Err("autoescape is not known here".to_owned()),
            ast::Stmt::Block(_)
            | ast::Stmt::Import(_)
            | ast::Stmt::FromImport(_)
            | ast::Stmt::Extends(_)
            | ast::Stmt::Include(_) => {
                return Err("a chat template stands alone, without blocks and imports".to_owned());
            }
        }
        Ok(())
    }

    fn with_block(&mut self, with: &ast::Spanned<ast::WithBlock<'_>>) -> WriteResult {
        self.open("{%", with.span());
        self.put("with ");
        self.separated(&with.assignments, |writer, (target, value)| {
            writer.target(target)?;
            writer.put(" = ");
            writer.expression(value)
        })?;
        self.put(" %}");
        self.statements(&with.body)?;
        self.put("{% endwith %}");
        Ok(())
    }

    fn set(&mut self, set: &ast::Spanned<ast::Set<'_>>) -> WriteResult {
        self.open("{%", set.span());
        self.put("set ");
        self.target(&set.target)?;
        self.put(" = ");
        // One of several targets may be a namespace.
        let is_variable = matches!(set.target, ast::Expr::Var(_));
        self.metered(&set.expr, (!is_variable).then_some(NESTED))?;
        self.put(" %}");
        Ok(())
    }

    fn set_block(&mut self, set: &ast::Spanned<ast::SetBlock<'_>>) -> WriteResult {
        self.open("{%", set.span());
        self.put("set ");
        self.target(&set.target)?;
        if let Some(filter) = &set.filter {
            self.put(" | ");
            self.filters(filter)?;
        }
        self.put(" %}");
        self.statements(&set.body)?;
        self.put("{% endset %}");
        Ok(())
    }

    /// Writes the filters of a block, the first one first.
    fn filters(&mut self, filter: &ast::Expr<'_>) -> WriteResult {
        let ast::Expr::Filter(filter) = filter else {
            return Err("a block is filtered by no filter".to_owned());
        };
        if let Some(before) = &filter.expr {
            self.filters(before)?;
            self.put(" | ");
        }
        self.put(filter.name);
        self.arguments(&filter.args)
    }

    fn declaration(&mut self, declared: &ast::Spanned<ast::Macro<'_>>) -> WriteResult {
        self.open("{%", declared.span());
        self.put("macro ");
        self.put(declared.name);
        self.parameters(declared)?;
        self.put(" %}");
        self.statements(&declared.body)?;
        self.put("{% endmacro %}");
        Ok(())
    }

    fn call_block(&mut self, block: &ast::Spanned<ast::CallBlock<'_>>) -> WriteResult {
        self.open("{%", block.call.span());
        self.put("call");
        self.parameters(&block.macro_decl)?;
        self.put(" ");
        self.call(&block.call)?;
        self.put(" %}");
        self.statements(&block.macro_decl.body)?;
        self.put("{% endcall %}");
        Ok(())
    }

    fn for_loop(&mut self, each: &ast::Spanned<ast::ForLoop<'_>>) -> WriteResult {
        self.loop_head(each)?;
        self.statements(&each.body)?;
        if !each.else_body.is_empty() {
            self.put("{% else %}");
            self.statements(&each.else_body)?;
        }
        self.put("{% endfor %}");
        Ok(())
    }

    fn loop_head(&mut self, each: &ast::Spanned<ast::ForLoop<'_>>) -> WriteResult {
        self.open("{%", each.span());
        self.put("for ");
        self.target(&each.target)?;
        self.put(" in ");
        self.expression(&each.iter)?;
        if let Some(filter) = &each.filter_expr {
            self.put(" if ");
            self.expression(filter)?;
        }
        self.put(if each.recursive {
            " recursive %}"
        } else {
            " %}"
        });
        Ok(())
    }

    fn condition(&mut self, word: &str, condition: &ast::Spanned<ast::IfCond<'_>>) -> WriteResult {
        self.open("{%", condition.expr.span());
        self.put(word);
        self.expression(&condition.expr)?;
        self.put(" %}");
        self.statements(&condition.true_body)?;
        match condition.false_body.as_slice() {
            [] => Ok(()),
            [ast::Stmt::IfCond(next)] => self.condition("elif ", next),
            other => {
                self.put("{% else %}");
                self.statements(other)
            }
        }
    }

    /// Writes the parameters of a macro; the last ones have defaults.
    fn parameters(&mut self, declared: &ast::Macro<'_>) -> WriteResult {
        let without_default = declared.args.len().saturating_sub(declared.defaults.len());
        let parameters: Vec<_> = declared
            .args
            .iter()
            .enumerate()
            .map(|(at, name)| {
                (
                    name,
                    at.checked_sub(without_default)
                        .and_then(|at| declared.defaults.get(at)),
                )
            })
            .collect();
        self.put("(");
        self.separated(&parameters, |writer, (name, default)| {
            writer.target(name)?;
            if let Some(default) = default {
                writer.put(" = ");
                writer.expression(default)?;
            }
            Ok(())
        })?;
        self.put(")");
        Ok(())
    }

    /// Writes the target of an assignment.
    fn target(&mut self, target: &ast::Expr<'_>) -> WriteResult {
        match target {
            ast::Expr::Var(name) => self.put(name.id),
            ast::Expr::GetAttr(attribute) => {
                self.target(&attribute.expr)?;
                self.put(".");
                self.put(attribute.name);
            }
            ast::Expr::List(list) => {
                self.put("(");
                for item in &list.items {
                    self.target(item)?;
                    self.put(", ");
                }
                self.put(")");
            }
            other => return Err(format!("it assigns to a {}", other.description())),
        }
        Ok(())
    }
}
