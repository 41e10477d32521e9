//! The fair division of an amount.

/// Divides `total` among demands: no part exceeds its demand while another is not met, and those that are
/// not met are equal. What is left over is divided in proportion to the demands, equally if there are none.
pub fn divide(total: f64, demands: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|one, other| demands[*one].total_cmp(&demands[*other]));
    let mut parts = vec![0.0; demands.len()];
    let mut left = total.max(0.0);
    for (at, &index) in order.iter().enumerate() {
        let equal = left / (order.len() - at) as f64;
        parts[index] = demands[index].clamp(0.0, equal);
        left -= parts[index];
    }
    let sum: f64 = demands.iter().map(|demand| demand.max(0.0)).sum();
    for (part, demand) in parts.iter_mut().zip(demands) {
        let weight = if sum > 0.0 { demand.max(0.0) / sum } else { 1.0 / demands.len() as f64 };
        *part += left.max(0.0) * weight;
    }
    parts
}
