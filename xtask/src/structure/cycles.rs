//! Cycles of modules: the strongly connected components of the graph (Tarjan).

use std::collections::BTreeMap;

use super::modules::ModuleGraph;

/// Returns the cycles of at least two modules, the largest first. Each is sorted by name.
pub(super) fn cycles(graph: &ModuleGraph) -> Vec<Vec<&str>> {
    let mut search = Search {
        graph,
        visits: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for module in graph.keys() {
        if !search.visits.contains_key(module.as_str()) {
            search.visit(module);
        }
    }
    let mut found = search.found;
    found.retain(|cycle| cycle.len() > 1);
    for cycle in &mut found {
        cycle.sort_unstable();
    }
    found.sort_by_key(|cycle| (usize::MAX - cycle.len(), cycle.clone()));
    found
}

struct Search<'g> {
    graph: &'g ModuleGraph,
    visits: BTreeMap<&'g str, Visit>,
    stack: Vec<&'g str>,
    found: Vec<Vec<&'g str>>,
}

#[derive(Clone, Copy)]
enum Visit {
    /// `lowest` is the oldest module on the stack that this one reaches.
    OnStack { lowest: usize },
    /// The module's component is found.
    Complete,
}

impl<'g> Search<'g> {
    /// Returns the lowest module that `module` reaches.
    fn visit(&mut self, module: &'g str) -> usize {
        let index = self.visits.len();
        let mut lowest = index;
        self.stack.push(module);
        self.visits.insert(module, Visit::OnStack { lowest });
        for target in self.graph.get(module).into_iter().flatten() {
            let reached = match self.visits.get(target.as_str()) {
                None => self.visit(target),
                Some(Visit::OnStack { lowest }) => *lowest,
                Some(Visit::Complete) => continue,
            };
            lowest = lowest.min(reached);
            self.visits.insert(module, Visit::OnStack { lowest });
        }
        if lowest == index {
            let start = self.stack.iter().rposition(|other| *other == module);
            let component = self.stack.split_off(start.unwrap_or_default());
            let members = component.iter().map(|member| (*member, Visit::Complete));
            self.visits.extend(members);
            self.found.push(component);
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_reach_each_other_are_a_cycle() {
        let arrows = [
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
            ("f", "a"),
            ("g", "h"),
        ];
        let mut graph = ModuleGraph::new();
        for (from, to) in arrows {
            graph.entry(to.to_owned()).or_default();
            graph
                .entry(from.to_owned())
                .or_default()
                .insert(to.to_owned());
        }
        assert_eq!(cycles(&graph), [vec!["a", "b", "c"], vec!["d", "e"]]);
    }
}
