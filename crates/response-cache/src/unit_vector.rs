//! Unit vectors of texts, for the comparison of meanings. Pure arithmetic.

/// A vector of length one, or an empty one without meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitVector(Vec<f32>);

impl UnitVector {
    /// Normalizes a vector of any length.
    pub fn of(vector: Vec<f32>) -> Self {
        let length = vector
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        let usable = length.is_finite() && length > 0.0;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "vectors come in single precision"
        )]
        let scaled = |value: f32| (f64::from(value) / length) as f32;
        Self(if usable {
            vector.into_iter().map(scaled).collect()
        } else {
            Vec::new()
        })
    }

    /// Returns the mean of several vectors; without any, or with different dimensions, one that is
    /// near nothing.
    pub fn middle(directions: &[Self]) -> Self {
        let size = directions.first().map_or(0, |first| first.0.len());
        if directions.iter().any(|direction| direction.0.len() != size) {
            return Self(Vec::new());
        }
        let mut sum = vec![0.0; size];
        for direction in directions {
            sum.iter_mut()
                .zip(&direction.0)
                .for_each(|(sum, value)| *sum += value);
        }
        Self::of(sum)
    }

    /// Returns whether it is near nothing.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns its bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<f32>()
    }

    /// Returns the cosine of the angle between two vectors, -1 to 1; 0 if they cannot be compared.
    pub fn similarity(&self, other: &Self) -> f64 {
        if self.0.len() != other.0.len() {
            return 0.0;
        }
        self.0
            .iter()
            .zip(&other.0)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    }

    /// Returns the index of the nearest vector, with its similarity; the first of equals.
    pub fn nearest(&self, others: &[Self]) -> Option<(usize, f64)> {
        let near = others
            .iter()
            .map(|other| self.similarity(other))
            .enumerate();
        near.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn direction(vector: &[f32]) -> UnitVector {
        UnitVector::of(vector.to_vec())
    }

    #[test]
    #[contract("V44")]
    fn parallel_vectors_have_similarity_one_at_any_length() {
        let (a, b) = (direction(&[3.0, 4.0]), direction(&[6.0, 8.0]));
        assert!((a.similarity(&b) - 1.0).abs() < 1e-6);
        assert!(a.similarity(&direction(&[-4.0, 3.0])).abs() < 1e-6);
        assert!((a.similarity(&direction(&[-3.0, -4.0])) + 1.0).abs() < 1e-6);
    }

    #[test]
    #[contract("V44")]
    fn the_mean_of_examples_is_closer_to_each_than_they_are_to_each_other() {
        let examples = [direction(&[1.0, 0.0]), direction(&[0.0, 5.0])];
        let middle = UnitVector::middle(&examples);
        assert!((middle.similarity(&examples[0]) - std::f64::consts::FRAC_1_SQRT_2).abs() < 1e-6);
        assert_eq!(
            direction(&[1.0, 0.1]).nearest(&examples).map(|(at, _)| at),
            Some(0)
        );
        assert_eq!(direction(&[1.0, 0.1]).nearest(&[]), None);
    }

    #[test]
    fn an_invalid_vector_has_similarity_zero() {
        let usual = direction(&[1.0, 0.0]);
        for nothing in [
            direction(&[0.0, 0.0]),
            direction(&[]),
            direction(&[f32::NAN, 1.0]),
            direction(&[f32::INFINITY, 1.0]),
        ] {
            assert_eq!(usual.similarity(&nothing), 0.0);
        }
        assert_eq!(usual.similarity(&direction(&[1.0, 0.0, 0.0])), 0.0);
        assert_eq!(
            usual.similarity(&UnitVector::middle(&[usual.clone(), direction(&[1.0])])),
            0.0
        );
    }
}
